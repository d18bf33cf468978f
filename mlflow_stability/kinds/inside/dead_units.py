"""Says when most units of a layer are never active."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.streak import StreakWithLoss, StreakWithLossDetector
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts, LimitFacts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class DeadUnitsFacts(FollowedFacts, LimitFacts):
    """A layer with many dead units, as their share."""

    kind: ClassVar[str] = "dead_units"
    metrics: ClassVar = {"dead_share": "value", "limit": "threshold"}

    def statement(self, step: int, unit: str, /) -> str:
        """``62.5% of the units of 1 zero for the whole batch at step 400 (threshold 50%, in 3 measurements …``."""
        return (
            f"{self.value:.1%} of the units of {self.place} zero for the whole batch at {unit} {step} (threshold "
            f"{self.threshold:.0%}, in {self.in_a_row} measurements in a row)."
        )


@dataclass(slots=True)
class DeadUnitsState(StreakWithLoss):
    """What has been seen so far."""

    before: dict[str, deque[float]] = field(default_factory=dict)
    """The last shares of each layer, before the one that is looked at."""
    died: set[str] = field(default_factory=set)
    """The layers that have lost their units at once and not got them back."""


@dataclass(frozen=True, slots=True)
class DeadUnits(StreakWithLossDetector):
    """Most units of a layer are never active.

    What it sees: a ReLU layer of which more than {share:percent} of the units, or channels, are exactly zero for the
    whole batch, in {rounds} measurements in a row. Where the loss has fallen to {gained:percent} of its start, or can
    be negative, {share_of_learning:percent} is the threshold instead. A layer that loses {lost_at_once:percent} of its
    units between two measurements keeps the threshold of {share:percent}. Nothing is reported once the loss is below
    {loss_fall.LEARNT:percent} of its start. Of layers found together the first is named. The finding ends when all are
    better. It is INFO while the loss falls, and a warning where the loss is above {progress.FALLEN:percent} of its
    start or at {progress.RISEN} times its lowest level.

    Why it matters: a unit that is zero for every input gets no gradient and cannot recover. The layer is only as wide
    as its active units.

    What to try: lower the learning rate or warm it up; check the initialisation and biases that drift; use LeakyReLU or
    GELU; normalise before the ReLU.

    When it is wrong: layers that are sparse by design, such as sparse autoencoders or experts; small batches, in which
    a rarely active unit stays zero. Functional calls of `relu` are not seen. No finding in 42 healthy trainings of 14
    kinds (1,353 shares measured every 100 steps, 13,530 every 10).

    Reference: Lu et al., Dying ReLU and initialization (arXiv:1903.06733)
    """

    share: float = 0.5
    """Share of dead units above which it counts."""
    share_of_learning: float = 0.9
    """The same while the loss falls: features that few examples need are zero in most batches."""
    gained: float = 0.5
    """Share of its start at or below which the loss has fallen."""
    lost_at_once: float = 0.5
    """Minimum increase of the share between two measurements for units to have died suddenly. Units that a layer stops
    using increase slowly. No layer of 64 healthy trainings lost so many at once
    (`python -m tests.benchmarks healthy_trainings`)."""
    rounds: int = 3
    """Number of measurements in a row."""

    kind = "dead_units"
    noun = "dead units"
    question = "Are units dead?"
    check_by_hand = (
        "Count units whose output is 0 for a whole batch; more than half needs another activation or a lower rate."
    )
    symptom = Symptom.INSIDE
    order = 310
    quantities = ("loss", "activation_dead")
    in_a_row = "rounds"
    remedies = (
        Remedy(Action.LOWER_RATE_OR_WARM_UP_LONGER),
        Remedy(Action.CHECK_INITIALISATION_AND_BIASES),
        Remedy(Action.USE_OTHER_RELU),
    )
    state_type = DeadUnitsState

    def facts(self, state: DeadUnitsState, point: Point) -> Facts | None:
        """Whether too many units are dead for how far the loss has come."""
        self._remember(state, point)
        limit, losses = self.share, state.progress.losses
        if point.value <= limit or losses.falls.learnt():
            return None
        if point.place not in state.died:
            left = 0.0 if losses.signed else losses.falls.share()
            limit = self.share if left is None or left > self.gained else self.share_of_learning
        high = point.value > limit
        return DeadUnitsFacts(point.value, limit, in_a_row=self.rounds, place=point.place) if high else None

    def _remember(self, state: DeadUnitsState, point: Point) -> None:
        before = state.before.setdefault(point.place, deque(maxlen=self.rounds))
        if len(before) == self.rounds and point.value - max(before) >= self.lost_at_once:
            state.died.add(point.place)
        elif point.value <= self.share:
            state.died.discard(point.place)
        before.append(point.value)
