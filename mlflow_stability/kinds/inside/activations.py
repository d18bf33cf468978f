"""Detect dead units, saturated activations, non-finite outputs and collapsed representations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.detectors.streak import StreakByPlace, StreakDetector, StreakWithLoss, StreakWithLossDetector
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts, LimitFacts
from mlflow_stability.vocabulary.result import LOWER_RATE, Action, Finding, Remedy, Severity

FIRST_STEPS = 10  # last step of a first measurement of initial weights: units dead since then died of no update


@dataclass(frozen=True, slots=True)
class DeadUnitsFacts(FollowedFacts, LimitFacts):
    kind: ClassVar[str] = "dead_units"
    metrics: ClassVar = {"dead_share": "value", "limit": "threshold"}

    from_start: bool = False  # Whether they have been dead since the first steps: no update killed them

    def statement(self, step: int, unit: str, /) -> str:
        since = ", and since the first steps" if self.from_start else ""
        return (
            f"{self.value:.1%} of the units of {self.place} zero for the whole batch at {unit} {step} (threshold "
            f"{self.threshold:.0%}, in {self.in_a_row} measurements in a row{since})."
        )


@dataclass(slots=True)
class DeadUnitsState(StreakWithLoss):
    before: dict[str, deque[float]] = field(default_factory=dict)  # the last shares of each layer
    died: set[str] = field(default_factory=set)  # the layers that have lost their units at once and not got them back
    first: dict[str, int] = field(default_factory=dict)  # by layer: step of the first share if always high, else -1


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
    GELU; normalise before the ReLU. The learning rate is not advised where units are dead since the first ten
    steps.

    When it is wrong: layers that are sparse by design, such as sparse autoencoders or experts; small batches, in which
    a rarely active unit stays zero. Functional calls of `relu` are not seen. No finding in 42 healthy trainings of 14
    kinds (1,353 shares measured every 100 steps, 13,530 every 10).

    Reference: Lu et al., Dying ReLU and initialization (arXiv:1903.06733)
    """

    share: float = 0.5  # share of dead units above which it counts
    share_of_learning: float = 0.9  # the same while the loss falls: features of few examples are zero in most batches
    gained: float = 0.5  # share of its start at or below which the loss has fallen
    lost_at_once: float = 0.5
    """Minimum increase of the share between two measurements for units to have died suddenly. Units that a layer stops
    using increase slowly. No layer of 64 healthy trainings lost as many at once
    (`python -m tests.benchmarks healthy_trainings`)."""
    rounds: int = 3  # number of measurements in a row

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
        if point.value <= self.share:
            state.first[point.place] = -1
        state.first.setdefault(point.place, point.step)
        before = state.before.setdefault(point.place, deque(maxlen=self.rounds))
        if len(before) == self.rounds and point.value - max(before) >= self.lost_at_once:
            state.died.add(point.place)
        elif point.value <= self.share:
            state.died.discard(point.place)
        before.append(point.value)
        limit, losses = self.share, state.progress.losses
        if point.value <= limit or losses.falls.learnt():
            return None
        if point.place not in state.died:
            left = 0.0 if losses.signed else losses.falls.share()
            limit = self.share if left is None or left > self.gained else self.share_of_learning
        high = point.value > limit
        if not high:
            return None
        from_start = 0 <= state.first[point.place] <= FIRST_STEPS
        return DeadUnitsFacts(point.value, limit, in_a_row=self.rounds, place=point.place, from_start=from_start)

    def finding(self, point: Point, severity: Severity, facts: Facts) -> Finding:
        finding = super(DeadUnits, self).finding(point, severity, facts)
        from_start = isinstance(facts, DeadUnitsFacts) and facts.from_start
        return replace(finding, remedies=self.remedies[1:]) if from_start else finding


@dataclass(frozen=True, slots=True)
class SaturatedActivationFacts(FollowedFacts, LimitFacts):
    kind: ClassVar[str] = "saturated_activation"
    metrics: ClassVar = {"pinned_share": "value", "limit": "threshold"}

    def statement(self, step: int, unit: str, /) -> str:
        return (
            f"{self.value:.1%} of the outputs of {self.place} saturated at {unit} {step} (threshold "
            f"{self.threshold:.0%}, in {self.in_a_row} measurements in a row)."
        )


@dataclass(frozen=True, slots=True)
class SaturatedActivation(StreakWithLossDetector):
    """Most outputs of a tanh or sigmoid are saturated.

    What it sees: a tanh, a sigmoid, or their hard variants with more than {share:percent} of the values in the flat
    part (tanh beyond 0.999, sigmoid within 0.001 of 0 or 1), in {rounds} measurements in a row. Nothing is reported
    once the loss is below {loss_fall.LEARNT:percent} of its start. Of modules found together the first is named. The
    finding ends when all are better. It is INFO while the loss falls, and a warning where the loss is above
    {progress.FALLEN:percent} of its start or at {progress.RISEN} times its lowest level.

    Why it matters: in the flat part almost no gradient passes through.

    What to try: check the scale of the weights and inputs before it; lower the learning rate; normalise before it.

    When it is wrong: an output that should be certain, such as the last sigmoid of a trained classifier; units that are
    meant to be fully open or closed. No finding in 42 healthy trainings of 14 kinds (495 shares measured every 100
    steps, 4,950 every 10).

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    share: float = 0.5  # share of saturated values above which it counts
    rounds: int = 3  # number of measurements in a row

    kind = "saturated_activation"
    noun = "saturated activations"
    question = "Are activations saturated?"
    check_by_hand = (
        "Print the share of sigmoid or tanh outputs within 1 % of their limits; above half they pass no gradient."
    )
    symptom = Symptom.INSIDE
    order = 320
    quantities = ("loss", "activation_saturation")
    in_a_row = "rounds"
    remedies = (Remedy(Action.CHECK_SCALE_BEFORE), LOWER_RATE, Remedy(Action.NORMALISE_BEFORE_ACTIVATION))

    def facts(self, state: StreakWithLoss, point: Point) -> Facts | None:
        if point.value <= self.share or state.progress.losses.falls.learnt():
            return None
        return SaturatedActivationFacts(point.value, self.share, in_a_row=self.rounds, place=point.place)


@dataclass(frozen=True, slots=True)
class ActivationNonfiniteFacts(Facts):
    kind: ClassVar[str] = "activation_nonfinite"
    metrics: ClassVar = ("nonfinite_values",)

    place: str  # The module
    nonfinite_values: float  # Number of values that are not finite, among those that were sampled
    last_finite_step: int  # The step of the last measurement in which all were finite

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"non-finite outputs of {self.place} at {unit} {step} ({self.nonfinite_values:.0f} of the sampled values); "
            f"all finite at {unit} {self.last_finite_step}."
        )


@dataclass(slots=True)
class ActivationNonfiniteState(StreakByPlace):
    last_finite: dict[str, int] = field(default_factory=dict)  # the last step with finite outputs alone, by module


@dataclass(frozen=True, slots=True)
class ActivationNonfinite(StreakDetector):
    """A module started to output NaN or infinity.

    What it sees: a module whose outputs are not finite and were finite in the measurement before. Of modules found
    together the first is named. The finding ends when all outputs are finite again.

    Why it matters: loss and gradient stay finite as long as a mask or a selection hides these values. A product with
    zero does not hide a NaN.

    What to try: look for a softmax over a fully masked row, and for a logarithm or a division whose result is masked
    afterwards. Compute it only where it is defined.

    When it is wrong: a module that outputs minus infinity as a mask for some batches only. One that has done so from
    the start is ignored.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/autograd.html
    """

    kind = "activation_nonfinite"
    instability = Instability.SIGN
    noun = "outputs that are not finite"
    question = "Are all activations finite?"
    check_by_hand = "Register a forward hook on every module that prints the first name whose output is not finite."
    symptom = Symptom.NON_FINITE
    order = 330
    quantities = ("activation_nonfinite",)
    across_places = True
    remedies = (Remedy(Action.LOOK_FOR_MASKED_ROW), Remedy(Action.COMPUTE_ONLY_WHERE_DEFINED))
    state_type = ActivationNonfiniteState

    def facts(self, state: ActivationNonfiniteState, point: Point) -> Facts | None:
        if not point.value > 0:
            state.last_finite[point.place] = point.step
            return None
        step = state.last_finite.get(point.place)
        return None if step is None else ActivationNonfiniteFacts(point.place, point.value, step)


@dataclass(frozen=True, slots=True)
class RepresentationCollapseFacts(Facts):
    kind: ClassVar[str] = "representation_collapse"
    metrics: ClassVar = ("effective_rank", "first", "mean_cosine")

    effective_rank: float  # Number of directions that the outputs span
    first: float  # The largest such number of the first measurements
    share: float  # The threshold, as a share of `first`
    mean_cosine: float  # Mean cosine similarity of the outputs, -1 to 1
    cosine: float  # The threshold of that similarity
    place: str  # The module

    def sentence(self, step: int, unit: str = "step", /) -> str:
        where = f" of {self.place}" if self.place else ""
        return (
            f"effective rank{where} {self.effective_rank:.1f} at {unit} {step} (threshold {self.share:.0%} of its "
            f"start of {self.first:.1f}); mean cosine similarity {self.mean_cosine:.2f} (threshold {self.cosine:g})."
        )


@dataclass(slots=True)
class RepresentationCollapseState(StreakByPlace):
    starts: list[float] = field(default_factory=list)
    step: int = -1
    rank: float = 0.0
    begins: bool = True  # whether it is one of the first measurements, which are not judged


@dataclass(frozen=True, slots=True)
class RepresentationCollapse(StreakDetector):
    """The representations span few directions, or are nearly identical.

    What it sees: a module given in `representations=` whose effective rank is below {share:percent} of the largest of
    its first {starts} measurements, or whose outputs have a mean cosine similarity above {cosine}; in {rounds} later
    measurements in a row. The finding ends after {streak.OVER_AFTER} normal measurements.

    Why it matters: few directions distinguish few inputs. Self-supervised training that collapses still shows a good
    loss.

    What to try: check the loss terms that keep representations apart (variance, contrast), stop-gradients and
    normalisation; lower the learning rate.

    When it is wrong: layers with one direction that all outputs share, as in many language models; layers right before
    few classes. With every module of 42 healthy trainings of 14 kinds (4,140 measurements every 100 steps) it was found
    in 1, a GAN whose generator produced nearly one point for a while; measured every 10 steps in 3, all of that GAN.

    Reference: Garrido et al., RankMe (arXiv:2210.02885); Jing et al., Understanding dimensional collapse
    (arXiv:2110.09348)
    """

    share: float = 0.1  # share of the first effective rank below which it has collapsed
    starts: int = 3  # number of first measurements that define the start; they are not judged
    cosine: float = 0.95  # mean cosine similarity above which all outputs are nearly identical
    rounds: int = 2  # number of measurements in a row

    kind = "representation_collapse"
    noun = "a collapse of representations"
    plural = "collapses of representations"
    question = "Have representations collapsed?"
    check_by_hand = "Compute the mean cosine between outputs of different samples: near 1 all of them look alike."
    symptom = Symptom.INSIDE
    order = 380
    quantities = ("effective_rank", "mean_cosine")
    in_a_row = "rounds"
    remedies = (Remedy(Action.CHECK_TERMS_AGAINST_COLLAPSE), LOWER_RATE)
    state_type = RepresentationCollapseState

    def takes(self, state: RepresentationCollapseState, point: Point) -> bool:
        if point.quantity == "effective_rank" and point.finite:
            state.step, state.rank = point.step, point.value
            state.begins = len(state.starts) < self.starts
            if state.begins:
                state.starts.append(point.value)
        return point.quantity == "mean_cosine" and point.finite and point.step == state.step and not state.begins

    def facts(self, state: RepresentationCollapseState, point: Point) -> Facts | None:
        first = max(state.starts, default=0.0)
        if state.rank >= self.share * first and point.value <= self.cosine:
            return None
        return RepresentationCollapseFacts(state.rank, first, self.share, point.value, self.cosine, point.place)
