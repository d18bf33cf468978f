"""Says when the device is mostly waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class LowMfuFacts(LimitFacts):
    """A low model FLOPs utilisation, as a share of the device's peak."""

    kind: ClassVar[str] = "low_mfu"
    metrics: ClassVar = {"mfu": "value", "limit": "threshold"}

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``model FLOPs utilisation 0.12 at step 400, below the threshold of 0.3 for 50 measurements.``"""
        return (
            f"model FLOPs utilisation {self.value:.2f} at {unit} {step}, below the threshold of {self.threshold:g} for "
            f"{self.in_a_row} measurements."
        )


@dataclass(frozen=True, slots=True)
class LowMfu(StreakDetector):
    """The device runs at less than {lowest:percent} of its peak FLOPS.

    What it sees: a model FLOPs utilisation below {lowest}, {steps} times in a row, on a device whose peak is known. The
    finding ends when it is higher.

    Why it matters: most of the device's cost is spent on waiting.

    What to try: use larger batches, `torch.compile`, fused optimizers, or more data-loader workers; profile a step.

    When it is wrong: small models, which cannot fill a large device. Its false-alarm rate is not measured.

    Reference: Chowdhery et al., PaLM (arXiv:2204.02311, appendix B)
    """

    lowest: float = 0.3
    """Utilisation below which it is low."""
    steps: int = 50
    """Number of low values in a row."""

    kind = "low_mfu"
    noun = "a low MFU"
    question = "Is the device used well?"
    check_by_hand = (
        "Compare model FLOPs per second with the device's peak; "
        "below {lowest:percent} look for small kernels and waiting."
    )
    order = 280
    quantities = ("mfu",)
    in_a_row = "steps"
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.USE_LARGER_BATCHES),
        Remedy(Action.COMPILE_AND_FUSE),
        Remedy(Action.ADD_WORKERS),
    )

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        """Whether the utilisation is low."""
        return LowMfuFacts(point.value, self.lowest, in_a_row=self.steps) if point.value < self.lowest else None
