"""Detect a loss that is still at its start."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import ClassVar

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.curves.levels import Levels, level_noise, read_levels
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Moves, Symptom
from mlflow_stability.detectors.loss_level import classes_at_chance, classes_of
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import RAISE_OR_LOWER_RATE, Action, Finding, Remedy, Severity


@dataclass(slots=True)
class PlateauState:
    losses: int = 0  # number of losses since the start
    start_sum: float = 0.0  # sum of the first losses
    total: float = 0.0  # sum of the losses of the current stretch
    count: int = 0  # number of these losses
    means: deque[float] = field(default_factory=deque)  # means of the last stretches
    best: float = math.inf  # the lowest of all means
    reported: bool = False


@dataclass(frozen=True, slots=True)
class PlateauFacts(Facts):
    """A loss that has not fallen since its start."""

    kind: ClassVar[str] = "plateau"
    metrics = ("loss", "start", "gain", "classes")

    loss: float  # Mean of the last losses, in the unit of the loss
    start: float  # Mean of the first losses, in the unit of the loss
    gain: float  # How far the loss has fallen since the start, as a share
    steps: int  # Number of last steps without a fall
    classes: int | None = None  # Number of classes for which the loss is at chance level, if there is one

    def sentence(self, step: int, unit: str = "step", /) -> str:
        chance = f", chance level for {self.classes:,} classes" if self.classes else ""
        return (
            f"loss {self.loss:.4g} at {unit} {step}{chance}; it started at {self.start:.4g} and has not fallen in the "
            f"last {self.steps:,} {unit}s."
        )


@dataclass(frozen=True, slots=True)
class LastLevelFacts(Facts):
    """What findings of a plateau know of a whole curve."""

    signal: str  # The loss, by the name that the log gives it
    last: float  # Its level at the end, in the unit of the loss


@dataclass(frozen=True, slots=True)
class FlatCurveFacts(LastLevelFacts):
    """A loss whose whole curve is flat from some step on."""

    kind: ClassVar[str] = "flat_curve"
    metrics = ("first", "last", "gain", "classes")

    first: float  # Its level at the start, in the unit of the loss
    gain: float  # How far it fell from start to end, as a share; below zero where it rose
    is_small: bool  # Whether that is little
    threshold: float | None  # Below which share nothing was gained, where it is flat from its start; else None
    points: int  # Number of points of the level at the end, and of that at a start from which it is flat
    last_step: int  # Its last step
    classes: int | None = None  # Number of classes for which the end is at chance level, if there is one
    is_steady: bool = False  # Whether it falls as fast at the end as before, and clearly

    def sentence(self, step: int, unit: str = "step", /) -> str:
        moved, only = "did not change", "only " if self.is_small else ""
        if abs(self.gain) > 0.0005:
            moved = f"fell by {only}{self.gain:.1%}" if self.gain > 0 else f"rose by {-self.gain:.1%}"
        least, at_first, at_last = "", "", f"{self.points} points"
        if self.threshold is not None:
            least = f" (threshold {self.threshold:.0%})"
            at_first, at_last = f" over its first {self.points} points", f"{self.points}"
        chance = f"; {self.last:.4g} is chance level for {self.classes} classes" if self.classes else ""
        return (
            f"{self.signal} {moved}{least}: from {self.first:.4g}{at_first} to {self.last:.4g} over its last "
            f"{at_last}, {'slow but steady' if self.is_steady else 'flat'} from {unit} {step} to {unit} "
            f"{self.last_step}{chance}."
        )


@dataclass(frozen=True, slots=True)
class Plateau(Detector):
    """The loss has not fallen since the start of the training.

    What it sees: from {least_steps} steps on, a loss within {stuck_gain:percent} of its start, the first {first_steps}
    losses, that has not fallen. Or a loss that fell by less than {small_gain:percent} in all and not in the last
    {long_steps} steps. Not fallen means: no clear fall of the mean of {stretch} steps, and any fall hidden in the noise
    ({errors} standard errors) is below {fall:percent}. A loss within {chance_within:percent} of the logarithm of a
    number of classes is called chance level. A run that fell further and then converged is not a plateau. The finding
    ends when the loss has fallen by {small_gain:percent}. Losses that can be negative and adversarial training, such as
    a GAN, are not judged. `diagnose` sees the whole curve and also judges shorter runs.

    Why it matters: nothing is being learnt, and more steps of the same will not change that.

    What to try: check that labels and inputs match and are shuffled; overfit one batch until its loss is near zero;
    raise the learning rate, or lower it by a factor of 10; look for frozen parameters and dead units.

    When it is wrong: losses that do not fall by design; a warm-up longer than {least_steps} steps.

    Reference: https://karpathy.github.io/2019/04/25/recipe/
    """

    first_steps: int = 20
    """Number of first losses that define the start."""
    least_steps: int = 1000
    """Minimum number of steps before anything is judged."""
    stretch: int = 100
    """Number of steps in one mean; the last two means are compared with those before."""
    stuck_gain: float = 0.02
    """Relative fall since the start below which the loss is stuck at its start."""
    small_gain: float = 0.10
    """Relative fall since the start below which a loss without progress for `long_steps` is stuck."""
    long_steps: int = 10_000
    """Number of steps without progress for `small_gain`."""
    fall: float = 0.005
    """Minimum relative fall that counts as progress."""
    errors: float = 3.0
    """Standard errors of the fall that are allowed for noise."""
    chance_within: float = 0.005
    """Maximum relative distance to the logarithm of a number of classes for chance level."""

    kind = "plateau"
    noun = "a plateau"
    plural = "plateaus"
    symptom = Symptom.STUCK
    order = 80
    quantities = ("loss",)
    compared = ("loss",)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "stuck_gain": "inverse",
        "small_gain": "inverse",
        "fall": "inverse",
    }
    remedies = (
        Remedy(Action.CHECK_LABELS),
        Remedy(Action.OVERFIT_ONE_BATCH),
        RAISE_OR_LOWER_RATE,
        Remedy(Action.LOOK_FOR_FROZEN_AND_DEAD),
    )

    def begin(self) -> PlateauState:
        return PlateauState(means=deque(maxlen=self.long_steps // self.stretch))

    def step(self, state: PlateauState, point: Point) -> tuple[PlateauState, Finding | None]:
        if not point.accepted or not point.has_level:
            return state, None
        state.losses += 1
        if state.losses <= self.first_steps:
            state.start_sum += point.value
        state.total += point.value
        state.count += 1
        if state.count < self.stretch:
            return state, None
        state.means.append(state.total / state.count)
        state.best = min(state.best, state.means[-1])
        state.total, state.count = 0.0, 0
        judged = point.logarithmic and state.losses >= self.least_steps
        return state, self._judge(state, point) if judged else None

    def _judge(self, state: PlateauState, point: Point) -> Finding | None:
        means = state.means
        start = state.start_sum / self.first_steps
        recent = (means[-1] + means[-2]) / 2
        if start <= 0 or recent <= 0 or not math.isfinite(start + recent):
            return None
        gain, best_gain = 1 - recent / start, 1 - state.best / start
        if best_gain >= self.small_gain or gain < -self.small_gain:
            state.reported = False
            return None
        if state.reported or (gain >= self.stuck_gain and len(means) * self.stretch < self.long_steps):
            return None
        if self._max_fall(list(means)) >= self.fall:
            return None
        state.reported = True
        facts = PlateauFacts(
            recent, start, gain, len(means) * self.stretch, classes_of(recent, self.chance_within) or None
        )
        return self.finding(point, Severity.WARNING, facts)

    def _max_fall(self, means: list[float]) -> float:
        """Return the largest fall over these means that noise may hide, as a share; infinity for a clear fall."""
        half = len(means) // 2
        before, after = sum(means[:half]) / half, sum(means[half:]) / (len(means) - half)
        # Neighbouring means differ by noise: the median of the differences is 0.954 standard deviations of one mean.
        noise = median(abs(mean - other) for mean, other in pairwise(means)) / 0.954
        margin = self.errors * noise * math.sqrt(2 / half)
        if before - after > margin:
            return math.inf
        return 2 * (before - after + margin) / before  # between the middles of the halves lies half of the fall


@dataclass(frozen=True, slots=True)
class PlateauRule(Rule):
    """The loss is still at its start, or stopped falling early.

    What it sees: a whole curve of {fewest_points} points or more, {fewest_steps} where each is one optimizer step and
    has a gradient norm, {fewest_in_warm_up} steps where the learning rate rose by a factor of {rising} in the last
    tenth, with one of three plateaus. Stuck at the start: it fell by less than {stuck_gain:percent} from its first
    points to its last ({validated_gain:percent} where a validation loss did not fall by {errors} times its noise), and
    moved by at most {steady} nats, as at chance level (the logarithm of the number of classes, or the variance of the
    target); its first value counts alone where the first tenth rose to {lifted:exp} times it. Stopped early: it started
    at chance level for many classes (a loss of {untrained[0]} to {untrained[1]}), fell by less than
    {early_gain:percent}, and then was flat, within {flat_gain:percent}, for {flat_share:percent} of the run. Collapsed:
    it fell to less than {collapse:exp_left} within the first {at_once:percent} of {fewest_after} points or more, and
    changed by less than {distance:percent}, or less than noise, from there to the end, with an error of at most
    {max_error}. A loss that falls slowly throughout, as from 4.5 to 3.3 over a fine-tuning, is not a plateau, nor is
    one below {loss_fall.LEARNT:percent} of its start. A loss that had fallen from its first value to its later ones, as
    where a point is the mean of an epoch, is INFO unless it is at chance level or {fewest_after} points or more are
    those of each step. So is a clear and steady fall that did not begin at chance level: by {steady_gain:percent} or
    more in all, and in the last third of the run by at least {steady_share:percent} of that in the middle third. A
    collapse to less than {mostly:exp_left} is INFO, and so is one whose points have noise above {batch_noise:percent}
    and that is not at chance level: it may have reached the noise of the targets.
    Where an accuracy or another score rose by {risen_score:points} percentage points while the loss was flat, it is not
    a plateau.

    When it is wrong: a training that continues another one, if its log does not begin with a late step. A loss whose
    noise hides slow progress is not reported as long as the noise allows for a fall of {possible_gain:percent}.
    """

    kind = "plateau"
    order = 80
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "stuck_gain": "inverse",
        "possible_gain": "inverse",
        "validated_gain": "inverse",
        "flat_gain": "inverse",
    }
    remedies = Plateau.remedies

    fewest_points: int = 10  # minimum number of points
    fewest_steps: int = 30  # the same where each point is one optimizer step, as the gradient norms of all of them show
    fewest_in_warm_up: int = 200  # minimum number of steps of a run whose learning rate is still rising at its end
    rising: float = 1.05  # minimum growth of that rate in the last tenth
    stuck_gain: float = 0.03  # relative fall since the start below which nothing was gained
    possible_gain: float = 0.05  # maximum relative fall that the noise may hide
    steady: float = 0.1  # maximum movement, in nats and beyond its noise, of a plateau
    steady_gain: float = 0.01
    """Relative fall, between the means of the first third and the last, from which a steady fall is INFO."""
    steady_share: float = 0.7
    """Minimum fall from the second third to the last, as a share of that from the first to the second."""
    lifted: float = math.log(3)
    """Rise of the first tenth above the first value, in nats, from which that value counts as the start."""
    validated_gain: float = 0.06  # maximum fall of the training loss where the validation loss did not fall
    errors: float = 4.0
    """Number of standard deviations of its noise that a validation loss must fall, where that is less than half of
    `stuck_gain`."""
    early_gain: float = 0.33
    """Relative fall below which little was gained, where the start was chance level for many classes."""
    untrained: tuple[float, float] = (3.9, 12.7)
    """Chance level for 50 and for 330,000 classes: the initial loss of a model with a vocabulary."""
    flat_share: float = 0.8  # share of the run, up to its end, over which such a loss is flat
    flat_gain: float = 0.01  # relative fall from the first third to the last below which a stretch is flat

    collapse: float = 1.5  # fall in nats, to less than {collapse:exp_left}, that is a collapse
    mostly: float = math.log(20)
    """Fall in nats, to less than {mostly:exp_left}, from which it is INFO: the rest may be the noise of the targets."""
    batch_noise: float = 0.05  # noise of a point, in nats, above which it is INFO, unless it is at chance level
    at_once: float = 0.07  # share of the run within which the collapse must be over
    distance: float = 0.01
    """Maximum distance of the later thirds from each other, in nats; twice its error is allowed as well."""
    max_error: float = 0.06  # maximum error at which the collapse is judged
    fewest_after: int = 60  # minimum number of points for a collapse, to distinguish it from a short training
    risen_score: float = 0.1  # minimum rise of an accuracy or another score that shows progress

    def like(self, detector: Detector) -> Rule:
        """What counts as no gain, and as flat, moves as with the detector."""
        if not isinstance(detector, Plateau):
            return self
        usual = Plateau()
        stuck = detector.stuck_gain / usual.stuck_gain
        return replace(
            self,
            stuck_gain=self.stuck_gain * stuck,
            possible_gain=self.possible_gain * stuck,
            validated_gain=self.validated_gain * stuck,
            flat_gain=self.flat_gain * (detector.fall / usual.fall),
        )

    def find(self, curves: RunCurves) -> list[Finding]:
        findings = []
        for curve in curves.losses or curves.validations:
            levels = None if curve.part or not curve.has_level else read_levels(curve)
            if levels is None or not levels.logarithmic or len(levels.raw_x) < self.fewest_points:
                continue
            if len(levels.raw_x) < self.fewest_steps and any(len(n.steps) == len(curve.steps) for n in curves.norms):
                continue
            late = _resumed(curve) or self._is_warming_up(curve, curves.rates)
            if not late and not self._fell_before_last_phase(curve):
                finding = self._judge(curve, levels, curves)
                learns = finding is not None and any(self._rose(score, finding) for score in curves.scores)
                findings += [] if finding is None or learns else [finding]
        return findings

    def _rose(self, score: Curve, finding: Finding) -> bool:
        """Whether a score of the same training rose clearly while the loss was flat."""
        values = score.values[score.finite & (score.steps >= finding.start)]
        if score.attempt != finding.attempt or len(values) < self.fewest_points:
            return False
        edge = max(3, len(values) // 5)
        scale = 100.0 if values.max() > 1.5 else 1.0  # in percent, or a share
        return float(np.median(values[-edge:]) - np.median(values[:edge])) >= self.risen_score * scale

    def _is_warming_up(self, curve: Curve, rates: Sequence[Curve]) -> bool:
        """Whether a short run ended while all its learning rates were rising."""
        ends = [values for rate in rates if len(values := rate.values[rate.finite & (rate.steps <= curve.steps[-1])])]
        rising = [values[-1] == values.max() > self.rising * values[9 * len(values) // 10] for values in ends]
        return curve.steps[-1] - curve.steps[0] < self.fewest_in_warm_up and bool(rising) and all(rising)

    def _judge(self, curve: Curve, levels: Levels, curves: RunCurves) -> Finding | None:
        x = levels.raw_x
        edge = max(3, len(x) // 10)
        start, first, last = (float(np.median(part)) for part in (x[:3], x[:edge], x[-edge:]))
        noise = levels.noise * math.sqrt(levels.size)  # of a single point
        error = noise * 1.25 * math.sqrt(2 / edge)
        lowest_start = min(start, float(x[0]))  # updates too large at first may have lifted the points after the first
        levels_seen = levels.x
        if first - lowest_start > self.lifted + 3 * noise:  # the first updates threw the loss far above its start
            first, levels_seen = lowest_start, levels.x[len(levels.x) // 2 :]
        from_start, gain = -_grown(last - start), -_grown(last - first)
        rest = -_grown(min(last, float(np.median(x[len(x) // 2 :]))) - first)
        allowed = self.validated_gain if self._is_validation_stuck(curve, curves) else self.stuck_gain
        margin = self.possible_gain - self.stuck_gain
        low, high = np.percentile(levels_seen, [10, 90])
        steady = float(high - low) < self.steady + 3 * levels.noise and gain > -self.steady
        learned = max(gain, rest) >= allowed or -_grown(last - lowest_start) >= allowed + margin + noise
        if steady and not learned and -_grown(last - first - 2 * error) < allowed + margin:
            finding = self._finding(curve, 0, first, last, edge, allowed)
            fell_at_once = -_grown(last - float(x[0]) + 3 * noise) >= allowed + margin
            each_step = not curves.counts_epochs and levels.raw_steps[1] - levels.raw_steps[0] == 1
            began_at_chance = classes_at_chance(math.exp(first)) > 0
            if not (_at_chance(finding) or began_at_chance) and self._falls_steadily(x, noise):
                finding = self._finding(curve, 0, first, last, edge, allowed, is_steady=True)
                return replace(finding, severity=Severity.INFO)
            if not fell_at_once or (each_step and len(x) >= self.fewest_after) or _at_chance(finding):
                return finding
            return self._collapse(curve, levels, start, last, noise, edge) or replace(finding, severity=Severity.INFO)
        flat = self._flat_from(levels)
        untrained = self.untrained[0] <= math.exp(min(start, 50)) <= self.untrained[1]
        if untrained and 0 <= from_start < self.early_gain and flat <= (1 - self.flat_share) * len(x):
            return self._finding(curve, flat, lowest_start, last, edge)
        return self._collapse(curve, levels, start, last, noise, edge)

    def _falls_steadily(self, x: np.ndarray, noise: float) -> bool:
        """Whether the loss falls clearly, and in the last third of the run as fast as in the middle one."""
        first, second, third = (float(np.mean(part)) for part in np.array_split(x, 3))
        error = noise * math.sqrt(6 / len(x))
        clear = min(first - second, second - third) > self.errors * error
        return clear and second - third > self.steady_share * (first - second) and first - third > self.steady_gain

    def _collapse(
        self, curve: Curve, levels: Levels, start: float, last: float, noise: float, edge: int
    ) -> Finding | None:
        """Return the finding of a loss that fell at once and then stopped changing."""
        if not (collapsed := self._collapsed(curve, levels)):
            return None
        finding = self._finding(curve, collapsed, max(float(levels.raw_x[0]), start), last, edge)
        converged = start - last >= self.mostly or (noise > self.batch_noise and not _at_chance(finding))
        return replace(finding, severity=Severity.INFO) if converged else finding

    def _collapsed(self, curve: Curve, levels: Levels) -> int:
        """Return the point at which a loss that fell at once stopped changing; 0 where it did not."""
        x = levels.raw_x
        first = int(self.at_once * len(x))
        if len(x) < self.fewest_after or math.exp(min(float(np.median(x[first:])), 700.0)) <= curve.floor:
            return 0
        thirds = [float(np.median(part)) for part in np.array_split(x[first:], 3)]
        after_fall = float(np.median(x[first : 2 * first]))
        error = 1.25 * levels.noise * math.sqrt(levels.size)  # of a single point
        of_thirds, of_fall = (
            error * math.sqrt(6 / (len(x) - first)),
            error * math.sqrt(1 / first + 3 / (len(x) - first)),
        )
        still = max(thirds) - min(thirds) <= max(self.distance, 2 * of_thirds)
        still = still and abs(after_fall - thirds[-1]) <= max(self.distance, 2 * of_fall)
        fell = max(float(x[0]), float(np.median(x[:3]))) - thirds[0]
        return first if still and of_thirds <= self.max_error and fell >= self.collapse else 0

    def _flat_from(self, levels: Levels) -> int:
        """Return the point from where the loss did not fall up to the end; the number of points if it fell."""
        x = levels.x
        for start in range(int(len(x) * (1 - self.flat_share)) + 1):
            rest = x[start:]
            third = len(rest) // 3
            if 1.25 * levels.noise * math.sqrt(2 / third) > 2 * self.flat_gain:
                break  # too noisy to tell whether it is flat
            head, tail = rest[:third], rest[-third:]
            fall = float(np.median(head) - np.median(tail))
            rough = float(np.median(rest[: max(1, third // 3)]) - np.median(tail))
            if abs(fall) < self.flat_gain and rough < 2 * self.flat_gain + 2 * levels.noise:
                is_level = rest <= float(np.median(tail)) + max(self.flat_gain, 2 * levels.noise)
                return min((start + int(np.argmax(is_level))) * levels.size, len(levels.raw_x) - 1)
        return len(levels.raw_x)

    def _fell_before_last_phase(self, curve: Curve) -> bool:
        """Whether the loss fell from its first value before the optimizer that ended the training took over."""
        values, steps = curve.values[curve.finite], curve.steps[curve.finite]
        begun = max((step for step in curve.phases if step <= steps[-1]), default=-1)
        edge = values[-max(3, len(values) // 10) :]
        return bool(steps[0] < begun and np.median(edge) < (1 - self.possible_gain) * values[0])

    def _is_validation_stuck(self, curve: Curve, curves: RunCurves) -> bool:
        """Whether the validation loss of the same place did not fall over at least eight points."""
        for other in curves.validations:
            values = other.values[other.finite]
            if other.place == curve.place and len(values) >= 8 and values.min() > 0:
                x = np.log(values)
                third = len(x) // 3
                fall = float(np.median(x[:third]) - np.median(x[-third:]))
                return fall < min(-math.log1p(-self.stuck_gain / 2), self.errors * level_noise(x))
        return False

    def _finding(
        self,
        curve: Curve,
        start: int,
        before: float,
        last: float,
        points: int,
        threshold: float | None = None,
        *,
        is_steady: bool = False,
    ) -> Finding:
        """Return the finding of a curve that is flat from a point on; `before` and `last` are logarithms."""
        steps = curve.steps[curve.finite]
        gain = -_grown(last - before)
        facts = FlatCurveFacts(
            curve.name,
            math.exp(last),
            math.exp(before),
            gain,
            is_small=gain < self.early_gain,
            threshold=threshold,
            points=points,
            last_step=int(steps[-1]),
            classes=classes_at_chance(math.exp(last)) or None,
            is_steady=is_steady,
        )
        return self.finding(curve, Severity.WARNING, facts, steps[start], steps[-1])


def _at_chance(finding: Finding) -> bool:
    return isinstance(finding.facts, FlatCurveFacts) and finding.facts.classes is not None


def _grown(nats: float) -> float:
    """Return the relative change of a level."""
    return math.expm1(min(nats, 700.0))


def _resumed(curve: Curve) -> bool:
    """Whether the log continues an earlier one, by its first step."""
    first, last = int(curve.steps[0]), int(curve.steps[-1])
    distance = (last - first) / max(1, len(curve.steps) - 1)
    return first > 3 * distance and first > 0.1 * last
