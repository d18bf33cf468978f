"""Says when the validation loss rises while the training loss falls."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.engine.chance import stays_at_chance
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves, Symptom
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event, Severity
from mlflow_stability.vocabulary.text.phrases import above


@dataclass(slots=True)
class OverfittingState:
    """What has been seen so far of a training loss and its validation loss."""

    total: float = 0.0
    count: int = 0
    """The training losses since the last validation."""
    last: deque[float] = field(default_factory=deque)
    """The last validation losses."""
    two: tuple[float, float] | None = None
    """The last two validation losses."""
    bends: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    """By how much the validation loss left the straight line through the two before it: its noise."""
    best: float | None = None
    best_step: int = -1
    train_at_best: float | None = None
    said: bool = False


@dataclass(frozen=True, slots=True)
class Overfitting(Detector):
    """The validation loss rises while the training loss still falls.

    What it sees: {in_a_row} validation losses in a row at least {smallest_rise:rise} above the best one, and by
    {beyond_noise} times what their own noise moves them. Where only one such distance is known, that factor is
    {few_bends:percent} higher. Meanwhile the training loss has fallen by {train_fell:fall} since the best one and is
    not at chance level. The finding ends when the validation loss is within {over:rise} of the best one.

    Why it matters: from the best step on the model memorises its training data; later weights generalise worse.

    What to try: keep the weights of the best step; stop there; use more or augmented data, dropout, weight decay, or a
    smaller model.

    When it is wrong: validation data that differs from the training data. Accuracy can still rise while the validation
    loss rises.

    Reference: Prechelt, Early stopping - but when? (1998)
    """

    smallest_rise: float = 1.10
    """Minimum ratio of the validation loss to the best one."""
    in_a_row: int = 3
    """Number of validation losses in a row that must be that high."""
    beyond_noise: float = 3.2
    """Minimum distance above the best, as a multiple of the usual distance of a validation loss from the line through
    the two before it. The default is 5.3σ of its noise."""
    few_bends: float = 3.0
    """Relative increase of `beyond_noise` where only one such distance is known; half of it with two, and so on."""
    train_fell: float = 0.98
    """Maximum training loss as a share of its value at the best validation loss."""
    over: float = 1.02
    """At or below this multiple of the best validation loss the finding ends."""

    kind = "overfitting"
    noun = "overfitting"
    symptom = Symptom.OVERFITTING
    order = 90
    quantities = ("loss", "val_loss")
    judged = "val_loss"
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"smallest_rise": "power", "beyond_noise": "times"}
    remedies = (
        Remedy(Action.KEEP_BEST_WEIGHTS),
        Remedy(Action.USE_MORE_DATA),
        Remedy(Action.ADD_REGULARISATION),
    )
    state_type = OverfittingState

    def step(self, state: OverfittingState, point: Point) -> tuple[OverfittingState, Event | None]:
        """Look at the next training or validation loss."""
        if not point.finite or not point.has_level:
            return state, None
        if point.quantity == "loss":
            state.total += point.value
            state.count += 1
            return state, None
        train = state.total / state.count if state.count else None
        state.total, state.count = 0.0, 0
        value = point.value
        if state.two is not None:
            state.bends.append(abs(value - 2 * state.two[1] + state.two[0]))
        state.two = (value if point.before is None else point.before, value)
        if state.best is None or value < state.best:
            state.best, state.best_step = value, point.step
            state.train_at_best = train
            state.last.clear()
            state.said = False
            return state, None
        state.last.append(value)
        if len(state.last) > self.in_a_row:
            state.last.popleft()
        best = state.best
        if state.said:
            state.said = not (best > 0 and value <= best * self.over)
            return state, None
        if best <= 0 or len(state.last) < self.in_a_row or train is None or state.train_at_best is None:
            return state, None
        lowest = min(state.last)
        noise = median(state.bends) * (1 + self.few_bends / len(state.bends))
        high = lowest >= best * self.smallest_rise and lowest - best >= self.beyond_noise * noise
        if not high or not 0 < train <= state.train_at_best * self.train_fell:
            return state, None
        if stays_at_chance(state.train_at_best, train):
            return state, None
        state.said = True
        return state, finding(
            self,
            point,
            Severity.WARNING,
            f"The validation loss is {value:.4g} at step {point.step}, {above(value / best - 1, 'its best')} of "
            f"{best:.4g} at step {state.best_step}, while the training loss fell from {state.train_at_best:.4g} "
            f"to {train:.4g}.",
            {"val_loss": value, "best": best, "best_step": float(state.best_step), "loss": train},
        )
