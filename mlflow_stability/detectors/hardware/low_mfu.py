"""Says when the device is mostly waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.engine.debounce import Streak
from mlflow_stability.detectors.engine.detector import Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.layer_values import ALL
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class LowMfu:
    """The device does less than a third of what it could.

    What it sees: a model FLOPs utilisation below 0.3, 50 times in a row, on a device whose peak is known. One finding
    until it is higher.

    Why it matters: most of what the device costs is spent on waiting.

    What to try: larger batches; `torch.compile`; fused optimizers; more workers for the data; look at the profile of
    a step.

    When it is wrong: small models, which cannot fill a large device. How often that is, is not measured.

    Reference: Chowdhery et al., PaLM (arXiv:2204.02311, appendix B)
    """

    lowest: float = 0.3
    """The utilisation below which it is low."""
    steps: int = 50
    """How many times in a row."""

    kind: ClassVar[str] = "low_mfu"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("mfu",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = ALL
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Take larger batches.",
        "Use torch.compile and a fused optimizer.",
        "Give the data loader more workers.",
    )

    def begin(self) -> Streak:
        """Start afresh, knowing nothing."""
        return Streak()

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next utilisation."""
        if not point.finite:
            return state, None
        bad = point.value < self.lowest
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"The model FLOPs utilisation is {point.value:.2f} at step {point.step}, below {self.lowest:g} for "
            f"{state.length} measurements.",
            {"mfu": point.value, "limit": self.lowest},
        )
