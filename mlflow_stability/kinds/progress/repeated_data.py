"""Detect a loss without noise: repeated batches, or an output that does not depend on the input."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.finding_type import FindingType, Symptom
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

LAST_BENDS = 64  # number of differences between two changes that are kept, more than are compared


@dataclass(slots=True)
class RepeatedDataState:
    count: int = 0
    last: float = 0.0  # logarithm of the last loss
    change: float = 0.0  # difference of the last two logarithms
    bend: float = 0.0  # usual size of the difference between one change and the next
    turns: float = 0.5  # usual share of changes whose direction differs from that of the change before
    row: int = 0  # number of smooth steps in a row
    turned: int = 0  # number of turning points in them
    bends: float = 0.0  # sum of their bends
    rough: int = 0  # number of noisy steps in a row
    reported: bool = False
    last_bends: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_BENDS))
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # logarithms of the last noisy losses


@dataclass(frozen=True, slots=True)
class NoNoiseFacts(Facts):
    """A loss that has lost its noise."""

    kind: ClassVar[str] = "no_noise"
    metrics = ("loss", "usual", "steps", "before")

    loss: float  # The loss, in its unit
    usual: float  # The usual difference between two changes of the loss, as a share of it
    steps: int  # Number of steps in a row without noise
    threshold: float  # The difference, as a share of the loss, below which there is no noise
    before: float | None = None  # Median of the losses before, in the unit of the loss, where it rose from there

    def sentence(self, step: int, unit: str = "step", /) -> str:
        rose = f"; it rose from a median of {self.before:.4g} to {self.loss:.4g}" if self.before is not None else ""
        threshold = f"{self.threshold:.1%}" if self.threshold >= 0.001 else f"{self.threshold:.2%}"
        return (
            f"loss without noise for {self.steps} {unit}s to {unit} {step}: consecutive changes differ by less than "
            f"{threshold} of the loss; {self.usual:.1%} was usual from batch to batch{rose}."
        )


@dataclass(frozen=True, slots=True)
class ConstantOutput(FindingType):
    """The loss rose and lost its noise: the output no longer seems to depend on the input.

    What it sees: what `repeated_data` sees, where the loss ends above what was usual before: by more than 1.5 times the
    usual difference between two changes, counted from the median of 100 losses. A batch that is repeated is learned, so
    that its loss falls.

    Why it matters: the model has lost what it had learned, and gives the same answer to every input.

    What to try: see whether weights, activations or sparse codes collapsed before it; compare the outputs for two
    batches; restart from a checkpoint before it.

    When it is wrong: one hard batch that is repeated, and not learned.

    Reference: Karpathy, A recipe for training neural networks (https://karpathy.github.io/2019/04/25/recipe/)
    """

    kind = "constant_output"
    noun = "a constant output"
    plural = "constant outputs"
    symptom = Symptom.REPEATED_DATA
    order = 131
    remedies = (Remedy(Action.COMPARE_OUTPUTS), Remedy(Action.CHECK_CONSTANT_OUTPUT))


BENDS_BEFORE = 32  # number of differences before the smooth steps that show whether the noise ended at once
ABRUPT = 0.5  # minimum median of these differences, as a share of the usual one: less is an oscillation that died away


@dataclass(frozen=True, slots=True)
class RepeatedData(Detector):
    """The loss has lost its noise: every step seems to use the same batch.

    What it sees: {row} steps in a row whose changes differ from each other by less than {share:percent} of the usual
    difference, with at most {most_turns} turning points. Before, in {first_steps} losses or more, at least
    {least_turns:percent} were turning points, as from batch to batch. The last {BENDS_BEFORE} differences have a
    median of {ABRUPT:percent} of the usual one or more, unlike those of an oscillation that dies away. Where
    it rose meanwhile by {risen} usual differences, the finding is a `constant_output`. Exact repetitions, as in rounded
    values, and losses at or below zero are not judged, nor is the loss of a GAN, or one whose usual difference is above
    {noisiest:percent}, or below {quietest:percent}, as that of a whole data set is. Other logs are not judged, since
    their points may be means over many steps. The finding ends after {row} noisy steps.

    Why it matters: the input no longer changes, and the model memorises one batch while the loss looks better and
    better.

    What to try: check the data loader: a worker that hangs, an iterator created again in every step, a sampler without
    shuffling. Compare two batches. If the loss does not fall, check that the output depends on the input.

    When it is wrong: a change from small batches to the whole data set. With dropout nothing is found: the loss stays
    noisy even on one batch. No finding in 117 healthy trainings of 39 kinds (136,000 losses).

    Reference: Karpathy, A recipe for training neural networks (https://karpathy.github.io/2019/04/25/recipe/)
    """

    share: float = 0.25  # share of the usual difference between two changes below which the curve is smooth
    row: int = 16  # number of smooth steps in a row
    first_steps: int = 128  # number of losses before the usual noise is known
    least_turns: float = 0.3  # minimum usual share of turning points; a curve that was always smooth is not judged
    most_turns: int = 4  # maximum number of turning points in the smooth steps: smaller noise has two in three steps
    risen: float = 1.5
    """Usual differences above the median of 100 losses from which the output, and not the batch, is constant."""
    noisiest: float = 0.2  # usual difference, as a share of a loss, above which a very noisy one has only settled
    quietest: float = 0.001  # usual difference, as a share of a loss, below which it is not noise of batches

    kind = "repeated_data"
    noun = "repeated data"
    question = "Does the loader return new batches?"
    check_by_hand = (
        "Hash the first tensor of 100 batches; count equal hashes. Check the sampler and the workers' seeds."
    )
    symptom = Symptom.REPEATED_DATA
    order = 130
    quantities = ("loss",)
    places = WHOLE
    remedies = (Remedy(Action.CHECK_DATA_LOADER), Remedy(Action.CHECK_OUTPUT_DEPENDS_ON_INPUT))
    state_type = RepeatedDataState

    def step(self, state: RepeatedDataState, point: Point) -> tuple[RepeatedDataState, Finding | None]:
        if not point.finite or point.reason is NoLevel.ADVERSARIAL:
            return state, None  # in adversarial training the other model makes the noise of the loss
        if point.value <= 0:
            return RepeatedDataState(), None
        level = math.log(point.value)
        change = level - state.last
        bend, turned = abs(change - state.change), change * state.change < 0
        state.last_bends.append(bend)
        state.count += 1
        state.last = level
        if state.count <= 2:
            state.change = change if state.count == 2 else 0.0
            return state, None
        state.change = change
        if change == 0.0:  # a rounded log does not show the noise
            state.row, state.turned, state.bends = 0, 0, 0.0
            return state, None
        is_noise_known = state.count > self.first_steps and state.turns >= self.least_turns
        if is_noise_known and self.quietest <= state.bend <= self.noisiest and bend < self.share * state.bend:
            state.row, state.rough = state.row + 1, 0
            state.turned, state.bends = state.turned + turned, state.bends + bend
            if state.row < self.row or state.reported:
                return state, None  # smooth steps do not change the usual noise
            before = list(state.last_bends)[: -self.row][-BENDS_BEFORE:]
            if state.turned <= self.most_turns and median(before) >= ABRUPT * state.bend:  # the noise ended at once
                return state, self._report(state, point, level)
            # It goes up and down as before, only less, or less and less: that is its noise from here on.
            state.bend, state.row, state.turned, state.bends = state.bends / state.row, 0, 0, 0.0
            return state, None
        state.row, state.turned, state.bends, state.rough = 0, 0, 0.0, state.rough + 1
        state.levels.append(level)
        if state.rough >= self.row:
            state.reported = False
        weight = max(1 / 128, 1 / (state.count - 2))
        limit = state.bend * 4 if state.bend else bend  # an outlier counts as four usual bends at most
        state.bend += weight * (min(bend, limit) - state.bend)
        state.turns += weight * (turned - state.turns)
        return state, None

    def _report(self, state: RepeatedDataState, point: Point, level: float) -> Finding:
        state.reported = True
        before = median(state.levels)
        rose = level > before + self.risen * state.bend
        facts = NoNoiseFacts(
            point.value, state.bend, state.row, self.share * state.bend, math.exp(before) if rose else None
        )
        finding = self.finding(point, Severity.WARNING, facts)
        return replace(finding, kind=ConstantOutput.kind, remedies=ConstantOutput.remedies) if rose else finding
