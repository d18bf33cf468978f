"""Detect losses that hardly fall, freeze or do not change, and scores that stay near zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves, after_last
from mlflow_stability.curves.levels import Levels, log_quantum, read_levels
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Moves
from mlflow_stability.kinds.progress.plateau import LastLevelFacts, Plateau
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import RAISE_OR_LOWER_RATE, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.metric_names import split_words


@dataclass(slots=True)
class SlowProgressState:
    count: int = 0
    start_sum: float = 0.0
    recent: list[float] = field(default_factory=list)
    reported: bool = False


@dataclass(frozen=True, slots=True)
class SlowProgressFacts(Facts):
    """A loss that has hardly fallen since the start of the run."""

    kind: ClassVar[str] = "slow_progress"
    metrics = ("loss", "start", "gain")

    loss: float  # Mean of the last losses, in the unit of the loss
    start: float  # Mean of the first losses, in the unit of the loss
    gain: float  # How far the loss has fallen since, as a share
    threshold: float  # Minimum share that is progress
    steps: int  # Number of losses since the start

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"loss {self.loss:.4g} at {unit} {step}, {self.gain:.1%} below its start of {self.start:.4g} "
            f"{self.steps:,} {unit}s ago (threshold {self.threshold:.0%})."
        )


@dataclass(frozen=True, slots=True)
class SlowProgress(Detector):
    """The loss has fallen by less than {least_gain:percent} since the start of the run.

    What it sees: every {every} steps, a mean of {recent_steps} losses less than {least_gain:percent} below the mean of
    the first {first_steps}. The finding ends when the loss has fallen further.

    Why it matters: either little is left to learn, or the training does not learn.

    What to try: raise the learning rate; check that the right parameters are trained.

    When it is wrong: fine-tuning that starts near its end; losses that do not measure progress. Found in 6 of 117
    healthy trainings, all of them a GAN or Q-learning.

    Reference: https://github.com/google-research/tuning_playbook
    """

    least_gain: float = 0.01  # minimum relative fall since the start
    first_steps: int = 20  # number of first losses that define the start
    every: int = 1000  # number of losses between two judgements
    recent_steps: int = 100  # number of losses in the recent mean

    kind = "slow_progress"
    noun = "slow progress"
    order = 240
    quantities = ("loss",)
    severities = (Severity.INFO,)
    experimental = True
    remedies = (Remedy(Action.RAISE_LEARNING_RATE), Remedy(Action.CHECK_TRAINED_PARAMETERS))
    state_type = SlowProgressState

    def step(self, state: SlowProgressState, point: Point) -> tuple[SlowProgressState, Finding | None]:
        if not point.finite or point.value <= 0 or not point.has_level:
            return state, None
        state.count += 1
        if state.count <= self.first_steps:
            state.start_sum += point.value
        place = state.count % self.every
        if place > self.every - self.recent_steps:
            state.recent.append(point.value)
        if place:
            return state, None
        start, now = state.start_sum / self.first_steps, (sum(state.recent) + point.value) / (len(state.recent) + 1)
        state.recent.clear()
        slow = now > start * (1 - self.least_gain)
        if not slow or state.reported:
            state.reported = slow
            return state, None
        state.reported = True
        facts = SlowProgressFacts(now, start, 1 - now / start, self.least_gain, state.count)
        return state, self.finding(point, Severity.INFO, facts)


@dataclass(frozen=True, slots=True)
class FrozenFacts(LastLevelFacts):
    """A loss that repeats exactly the same value, `last`."""

    kind: ClassVar[str] = "frozen"
    metrics = ("last", "equal")

    equal: int  # Number of equal values, up to the last
    last_step: int  # The step of the last of them
    threshold: int  # Minimum number of equal values
    before: float | None = None  # Its level before, in the unit of the loss; None where all of its values are equal

    def sentence(self, step: int, unit: str = "step", /) -> str:
        if self.before is None:
            return f"{self.signal} is exactly {self.last:.4g} in all of its {self.equal} points."
        return (
            f"{self.signal} {'fell' if self.last < self.before else 'rose'} from about {self.before:.4g} to exactly "
            f"{self.last:.4g} in one point, at {unit} {step}, and stayed there: {self.equal} equal values up to "
            f"{unit} {self.last_step} (threshold {self.threshold})."
        )


@dataclass(frozen=True, slots=True)
class FrozenRule(Rule):
    """The loss froze: it repeats exactly the same value to the end, or is always zero.

    What it sees: at least {fewest} values and {fewest_share:percent} of the run, up to the end, that are equal to the
    last digit, where neighbours among the {before} values before differed by {quanta} times that digit and never had
    that value. Or {fewest_zeros} and more values that are all exactly zero. A loss that had fallen below
    {loss_fall.LEARNT:percent} of its start is learnt, and may go to zero.

    When it is wrong: one fixed batch on purpose, at a learning rate of zero.
    """

    kind = "plateau"
    order = 70
    remedies = (Remedy(Action.INSPECT_OUTPUTS_AND_LABELS), Remedy(Action.CHECK_WEIGHTS_FOR_NAN), *Plateau.remedies)

    fewest: int = 20  # minimum number of equal values in a row, up to the last
    fewest_zeros: int = 8  # minimum number of values where all are zero
    fewest_share: float = 0.02  # minimum share of the run
    before: int = 20  # number of values before that show how much neighbours differed
    quanta: float = 5.0  # minimum difference between neighbours before, as a multiple of the last logged digit

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(self._judge(curve) for curve in curves.losses if not curve.part)

    def _judge(self, curve: Curve) -> Finding | None:
        finite = curve.finite
        values = curve.values[finite]
        if len(values) < self.fewest_zeros or not finite[-1]:
            return None
        last = float(values[-1])
        first = after_last(values != last)
        count = len(values) - first
        if first > 0 and count < max(self.fewest, self.fewest_share * len(values)):
            return None
        if first == 0:
            if last != 0 or not curve.has_level:
                return None  # other constants are found as a plateau; a policy's loss has no level
            return self._finding(curve, first, count, None)
        before = values[max(0, first - self.before) : first]
        moved = float(np.median(np.abs(np.diff(before)))) if len(before) >= 8 else 0.0
        if moved <= self.quanta * log_quantum(values) or (before == last).any():
            return None
        if before[-3:].min() <= curve.floor:
            return None  # learnt before it froze
        return self._finding(curve, first, count, float(np.median(before)))

    def _finding(self, curve: Curve, first: int, count: int, before: float | None) -> Finding:
        steps = curve.steps[curve.finite]
        last = float(curve.values[-1])
        facts = FrozenFacts(curve.name, last, count, int(steps[-1]), self.fewest, before)
        return self.finding(curve, Severity.WARNING, facts, steps[first], steps[-1])


@dataclass(frozen=True, slots=True)
class StandstillFacts(Facts):
    """A loss that fell and then did not change to the end of the run."""

    kind: ClassVar[str] = "standstill"
    metrics: ClassVar[Mapping[str, str]] = {"last": "last", "start": "start", "unchanged": "steps"}

    signal: str  # The loss, by the name that the log gives it
    last: float  # Its level at the end, in the unit of the loss
    start: float  # Its level at the start, in the unit of the loss
    steps: int  # Number of steps without a fall
    share: float  # Share of the run
    threshold: float  # Relative fall below which it did not change
    other: str = ""  # Of a validation loss: the training loss that fell meanwhile

    def sentence(self, step: int, unit: str = "step", /) -> str:
        unchanged = (
            f"{self.signal} has not fallen since {unit} {step}: about {self.last:.4g} for {self.steps:,} {unit}s "
            f"({self.share:.0%} of the run, fall below {self.threshold:.0%}); it had fallen from {self.start:.4g}"
        )
        return f"{unchanged}, and {self.other} fell on." if self.other else f"{unchanged}."


@dataclass(frozen=True, slots=True)
class StandstillRule(Rule):
    """The loss fell and then did not change for a large part of the run.

    What it sees: a whole curve of {fewest_points} points or more that fell by {fell:percent} or more, and then, for
    {share:percent} of the run or more up to the end, by less than {gain:percent} from the first to the last third of
    that time, with a standard error of at most {max_error:percent}. It is a warning for {long_share:percent} of the run
    and {long_steps} steps or more, where {left:percent} or more of its start is left; else INFO. Not where the logged
    learning rate was below {decayed:percent} of its highest value in the middle of that time, nor where the loss is
    below {loss_fall.LEARNT:percent} of its start. A validation loss that does not change while the training loss falls
    is INFO.

    When it is wrong: a loss that has reached what its noise allows. Compare it with other runs.
    """

    kind = "plateau"
    order = 81
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {"gain": "inverse"}
    remedies = (RAISE_OR_LOWER_RATE, Remedy(Action.USE_MORE_DATA))

    fewest_points: int = 30  # minimum number of points
    fell: float = 0.25  # minimum relative fall from the start
    share: float = 0.4  # minimum share of the run, up to its end, in which it did not change
    gain: float = 0.01  # relative fall from the first to the last third of that time below which it did not change
    max_error: float = 0.01  # maximum standard error of that fall
    long_share: float = 0.6  # minimum share of the run for a warning
    long_steps: int = 10_000  # minimum number of steps for a warning
    left: float = 0.4  # share of its start that is left where it is a warning
    decayed: float = 0.2  # share of the highest learning rate below which the schedule has ended the training

    def find(self, curves: RunCurves) -> list[Finding]:
        whole = [curve for curve in curves.losses if not curve.part]
        findings = present(self._judge(curve, curves) for curve in whole)
        if findings or len(whole) != 1:
            return findings
        validations = [curve for curve in curves.validations if not curve.part and curve.place == whole[0].place]
        return present(self._judge(curve, curves, whole[0]) for curve in validations)

    def _judge(self, curve: Curve, curves: RunCurves, beside: Curve | None = None) -> Finding | None:
        levels = read_levels(curve) if curve.has_level else None
        if levels is None or not levels.logarithmic or len(levels.raw_x) < self.fewest_points:
            return None
        start, last = float(np.median(levels.raw_x[:3])), float(np.median(levels.x[-max(3, len(levels.x) // 10) :]))
        first = self._constant_from(levels)
        if first is None or -math.expm1(last - start) < self.fell or math.exp(last) <= curve.floor:
            return None
        steps = levels.raw_steps
        since, end = int(levels.steps[first]), int(steps[-1])
        share = (end - since) / max(1, end - int(steps[0]))
        if share < self.share or _decayed(curves.rates, (since + end) // 2, self.decayed):
            return None
        if beside is not None and not _fell_since(beside, since, 3 * self.gain):
            return None
        is_long = share >= self.long_share and end - since >= self.long_steps
        is_warning = beside is None and is_long and math.exp(last - start) >= self.left
        facts = StandstillFacts(
            curve.name,
            math.exp(last),
            math.exp(start),
            end - since,
            share,
            self.gain,
            "" if beside is None else beside.name,
        )
        return self.finding(curve, Severity.WARNING if is_warning else Severity.INFO, facts, since, end)

    def _constant_from(self, levels: Levels) -> int | None:
        """Return the block from where the loss did not fall up to the end."""
        x = levels.x
        for first in range(int(len(x) * (1 - self.share)) + 1):
            rest = x[first:]
            third = len(rest) // 3
            if third < 3 or 1.25 * levels.noise * math.sqrt(2 / third) > self.max_error:
                return None
            head, middle, tail = (float(np.median(part)) for part in np.array_split(rest, 3))
            if head - tail < self.gain and abs(middle - tail) < self.gain and tail - head < 2 * self.gain:
                return first + int(np.argmax(rest <= tail + max(self.gain, levels.noise)))
        return None


def _decayed(rates: tuple[Curve, ...], step: int, share: float) -> bool:
    """Whether all learning rates had decayed by a step to less than a share of their highest value."""
    decayed = []
    for rate in rates:
        steps, values = rate.steps[rate.finite], rate.values[rate.finite]
        if len(values) and values.max() > 0:
            decayed.append(np.interp(step, steps, values) < share * values.max())
    return bool(decayed) and all(decayed)


def _fell_since(curve: Curve, step: int, share: float) -> bool:
    """Whether a loss has fallen by more than a share since a step."""
    values = curve.values[curve.finite & (curve.steps >= step)]
    if len(values) < 9 or values.min() <= 0:
        return False
    third = len(values) // 3
    return bool(np.median(values[-third:]) < (1 - share) * np.median(values[:third]))


def _is_accuracy(score: Curve) -> bool:
    return not {"acc", "accuracy"}.isdisjoint(word.lower() for word in split_words(score.name))


@dataclass(frozen=True, slots=True)
class LowScoresFacts(Facts):
    """Scores that stayed near zero."""

    kind: ClassVar[str] = "low_scores"
    metrics = ("best", "evaluations")

    signal: str  # The score that was logged most often
    best: float  # The highest of all scores, as a share
    threshold: float  # Maximum score that counts as zero
    evaluations: int  # Number of values of the score
    last_step: int  # The step of the last one

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"highest score {self.best:.2g} (threshold {self.threshold:g}): {self.signal} near zero in "
            f"{self.evaluations} evaluations, from {unit} {step} to {unit} {self.last_step}."
        )


@dataclass(frozen=True, slots=True)
class ScoreRule(Rule):
    """Every score of the run stayed near zero.

    What it sees: all logged accuracies, precisions, recalls, F1, IoU and mean average precisions; none of their
    {fewest_points} or more values exceeded {highest:percent}. An accuracy of exactly zero throughout does not count
    where a loss fell to less than {fell:percent} of its start: guesses are right at times, so it was not measured.

    When it is wrong: a task of very many classes, or one where the first correct answer comes late; scores of a rare
    class alone.
    """

    kind = "plateau"
    order = 90
    remedies = (
        Remedy(Action.COMPARE_PREDICTIONS),
        Remedy(Action.CHECK_CLASSES_AND_LABELS),
        Remedy(Action.USE_PRETRAINED_WEIGHTS),
    )

    fewest_points: int = 40  # minimum number of evaluations
    highest: float = 0.03  # maximum score that counts as zero
    fell: float = 0.5  # share of its start below which a loss shows that something was learnt

    def find(self, curves: RunCurves) -> list[Finding]:
        scores = [curve for curve in curves.scores if curve.finite.any()]
        if any(_fell_since(loss, int(loss.steps[0]), 1 - self.fell) for loss in curves.losses):
            scores = [curve for curve in scores if curve.values.any() or not _is_accuracy(curve)]
        if not scores:
            return []
        main = max(scores, key=lambda curve: len(curve.values))
        best = max(float(curve.values[curve.finite].max()) for curve in scores)
        lowest = min(float(curve.values[curve.finite].min()) for curve in scores)
        if len(main.values) < self.fewest_points or best > self.highest or lowest < 0:
            return []
        last = int(main.steps[-1])
        facts = LowScoresFacts(main.name, best, self.highest, len(main.values), last)
        return [self.finding(main, Severity.WARNING, facts, main.steps[0], last)]
