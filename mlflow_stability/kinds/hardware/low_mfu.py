"""Says when the device is mostly waiting."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.debounce import Streak
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(frozen=True, slots=True)
class LowMfu(Detector):
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
    judged = "mfu"
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.USE_LARGER_BATCHES),
        Remedy(Action.COMPILE_AND_FUSE),
        Remedy(Action.ADD_WORKERS),
    )
    state_type = Streak

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
            f"model FLOPs utilisation {point.value:.2f} at step {point.step}, below the threshold of {self.lowest:g} "
            f"for {state.length} measurements.",
            {"mfu": point.value, "limit": self.lowest},
        )
