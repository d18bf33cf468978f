"""What a recording says of its losses: that no step has one, and that some belong to no step.

In: the reading of each step. Out: events for information. Promised: a training without a loss is told of once; losses
that the script discarded are told of at their first step, and then at most once in `TELL_EVERY` steps, with their sum.
"""

from __future__ import annotations

from mlflow_stability.detectors.setup_kinds import BatchDiscarded, NotMeasured
from mlflow_stability.probes.reading import CycleReading
from mlflow_stability.vocabulary.event import Event, Severity

STEPS_WITHOUT_LOSS = 20
"""After so many steps without a loss there will be none."""
TELL_EVERY = 100
NO_LOSS = (
    "no loss seen: no backward pass began at a scalar tensor (torch.func, torch.autograd.grad, a pipeline stage, or "
    "gradients set by the script)"
)


class LossAccount:
    """The losses of one recording."""

    def __init__(self) -> None:
        self.seen = self._told = False
        """Whether any step had one."""
        self._steps = 0
        self._discarded = 0
        self._last_told: int | None = None

    def take(self, step: int, reading: CycleReading) -> list[Event]:
        """Runs with each step; gives what is to be said now."""
        self._steps += 1
        self.seen = self.seen or any(each.quantity == "loss" for each in reading.signals)
        found = self.missing(step) if self._steps >= STEPS_WITHOUT_LOSS else []
        if reading.discarded:
            found += self._of_discarded(step, reading)
        return found

    def missing(self, step: int) -> list[Event]:
        """What is to be said of a training without a loss; asked at the end, too: it may be a short one."""
        if self.seen or self._told or not self._steps:
            return []
        self._told = True
        message = (
            f"No loss was seen in {self._steps} step{'s' * (self._steps > 1)}: no backward pass began at a scalar "
            "tensor, as with torch.func, torch.autograd.grad, a pipeline stage, or gradients that the script sets. "
            "Gradient norms and learning rates are recorded, the loss is not."
        )
        remedy = (
            "Pass the loss by hand: `with mlflow_stability.attach(model, optimizer) as session: session.step(loss)`."
        )
        return [Event(step, NotMeasured.kind, Severity.INFO, message, "loss", remedies=(remedy,))]

    def _of_discarded(self, step: int, reading: CycleReading) -> list[Event]:
        self._discarded += len(reading.discarded)
        if self._last_told is not None and step - self._last_told < TELL_EVERY:
            return []
        self._last_told = step
        losses = ", ".join(f"{each:g}" for each in reading.discarded[:3])
        message = (
            f"A loss that was not finite ({losses}) came before step {step} and is no part of it: the script discarded "
            f"its gradients. {self._discarded} such loss{'es' * (self._discarded > 1)} so far."
        )
        numbers = {"discarded": float(self._discarded)}
        return [Event(step, BatchDiscarded.kind, Severity.INFO, message, "", numbers, remedies=BatchDiscarded.remedies)]
