"""Says when a training never got anywhere, or stopped getting anywhere early on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mlflow_stability.detectors.engine import Detector, Moves
from mlflow_stability.detectors.loss import Plateau
from mlflow_stability.diagnosis.curves.chance_level import chance_of
from mlflow_stability.diagnosis.curves.curves import Curve, RunCurves
from mlflow_stability.diagnosis.curves.levels import Levels, levels_of
from mlflow_stability.diagnosis.rules.rule import Rule
from mlflow_stability.vocabulary.result import Episode, Severity


@dataclass(frozen=True, slots=True)
class PlateauRule(Rule):
    """The loss is still at its start, or stopped falling early.

    What it sees: a whole curve of {fewest_points} points or more with one of three plateaus. Stuck at the start: it
    fell by less than {stuck_gain:percent} from its first points to its last ({validated_gain:percent} where a
    validation loss did not fall), and moved by at most {steady} nats, as at chance level (the logarithm of the number
    of classes, or the variance of the target). Stopped early: it started at chance level for many classes (a loss of
    {untrained[0]} to {untrained[1]}), fell by less than {early_gain:percent}, and then was flat, within
    {flat_gain:percent}, for {flat_share:percent} of the run. Collapsed: it fell to less than {collapse:exp_left} within
    the first {at_once:percent} of {fewest_after} points or more, and changed by less than {distance:percent}, or less
    than noise, from there to the end, known to {known}. A loss that falls slowly throughout, as from 4.5 to 3.3 over a
    fine-tuning, is not a plateau, nor is one below {loss_fall.LITTLE:percent} of its start.

    Why it matters: the steps cost time and nothing is learnt.

    What to try: a higher learning rate, or a lower one where the loss is noisy; check that labels match inputs; check
    that the optimizer has all parameters and gradients reach them; look for dead units.

    When it is wrong: a training that continues another one, if its log does not begin with a late step. A loss whose
    noise hides slow progress is not reported as long as the noise allows for a fall of {possible_gain:percent}.

    Reference: Karpathy 2019, A recipe for training neural networks ("verify loss at init").
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

    fewest_points: int = 10
    """Minimum number of points."""
    stuck_gain: float = 0.03
    """Relative fall since the start below which nothing was gained."""
    possible_gain: float = 0.05
    """Maximum relative fall that the noise may hide."""
    steady: float = 0.1
    """Maximum movement, in nats and beyond its noise, of a plateau."""
    validated_gain: float = 0.06
    """Maximum fall of the training loss where the validation loss did not fall."""
    early_gain: float = 0.33
    """Relative fall below which little was gained, where the start was chance level for many classes."""
    untrained: tuple[float, float] = (3.9, 12.7)
    """Chance level for 50 and for 330,000 classes: the initial loss of a model with a vocabulary."""
    flat_share: float = 0.8
    """Share of the run, up to its end, over which such a loss is flat."""
    flat_gain: float = 0.01
    """Relative fall from the first third to the last below which a stretch is flat."""

    collapse: float = 1.5
    """Fall in nats, to less than {collapse:exp_left}, that is a collapse."""
    at_once: float = 0.07
    """Share of the run within which the collapse must be over."""
    distance: float = 0.01
    """Maximum distance of the later thirds from each other, in nats; twice its error is allowed as well."""
    known: float = 0.06
    """Maximum error at which the collapse is judged."""
    fewest_after: int = 60
    """Minimum number of points for a collapse, to distinguish it from a short training."""

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

    def find(self, curves: RunCurves) -> list[Episode]:
        """The training losses that went nowhere, those of the whole model alone."""
        found: list[Episode] = []
        for curve in curves.losses or curves.validations:
            levels = None if curve.part or not curve.has_level else levels_of(curve)
            if levels is None or not levels.logarithmic or len(levels.raw_x) < self.fewest_points:
                continue
            if not _resumed(curve):
                found += self._of(curve, levels, self._validation_stuck(curve, curves))
        return found

    def _of(self, curve: Curve, levels: Levels, validation_stuck: bool) -> list[Episode]:
        x = levels.raw_x
        edge = max(3, len(x) // 10)
        start, first, last = (float(np.median(each)) for each in (x[:3], x[:edge], x[-edge:]))
        one = levels.noise * math.sqrt(levels.size)  # the noise of a single point
        error = one * 1.25 * math.sqrt(2 / edge)
        begun = min(start, float(x[0]))  # updates too large at first may have lifted the points after the first
        from_start, gain = -_grown(last - start), -_grown(last - first)
        rest = -_grown(min(last, float(np.median(x[len(x) // 2 :]))) - first)
        allowed = self.validated_gain if validation_stuck else self.stuck_gain
        margin = self.possible_gain - self.stuck_gain
        low, high = np.percentile(levels.x, [10, 90])
        steady = float(high - low) < self.steady + 3 * levels.noise and gain > -self.steady
        learned = max(gain, rest) >= allowed or -_grown(last - begun) >= allowed + margin + one
        if steady and not learned and -_grown(last - first - 2 * error) < allowed + margin:
            return [self._episode(curve, 0, first, last, gain, edge, f" over its first {edge} points")]
        flat = self._flat_from(levels)
        untrained = self.untrained[0] <= math.exp(min(start, 50)) <= self.untrained[1]
        if untrained and 0 <= from_start < self.early_gain and flat <= (1 - self.flat_share) * len(x):
            return [self._episode(curve, flat, begun, last, -_grown(last - begun), edge)]
        fallen = self._collapsed(curve, levels)
        if fallen:
            high = max(float(x[0]), start)
            return [self._episode(curve, fallen, high, last, -_grown(last - high), edge)]
        return []

    def _collapsed(self, curve: Curve, levels: Levels) -> int:
        """The point from which on a loss that fell at once has stood; 0 where there is none."""
        x = levels.raw_x
        first = int(self.at_once * len(x))
        if len(x) < self.fewest_after or math.exp(min(float(np.median(x[first:])), 700.0)) <= curve.floor:
            return 0
        thirds = [float(np.median(each)) for each in np.array_split(x[first:], 3)]
        then = float(np.median(x[first : 2 * first]))  # right after the fall
        one = 1.25 * levels.noise * math.sqrt(levels.size)
        of_thirds, of_then = one * math.sqrt(6 / (len(x) - first)), one * math.sqrt(1 / first + 3 / (len(x) - first))
        still = max(thirds) - min(thirds) <= max(self.distance, 2 * of_thirds)
        still = still and abs(then - thirds[-1]) <= max(self.distance, 2 * of_then)
        fell = max(float(x[0]), float(np.median(x[:3]))) - thirds[0]
        return first if still and of_thirds <= self.known and fell >= self.collapse else 0

    def _flat_from(self, levels: Levels) -> int:
        """The point from which on nothing was gained up to the end; the number of points if there is none."""
        x = levels.x
        for start in range(int(len(x) * (1 - self.flat_share)) + 1):
            rest = x[start:]
            third = len(rest) // 3
            if 1.25 * levels.noise * math.sqrt(2 / third) > 2 * self.flat_gain:
                break  # so noisy that nobody can tell whether it is flat
            head, tail = rest[:third], rest[-third:]
            fall = float(np.median(head) - np.median(tail))
            rough = float(np.median(rest[: max(1, third // 3)]) - np.median(tail))
            if abs(fall) < self.flat_gain and rough < 2 * self.flat_gain + 2 * levels.noise:
                there = rest <= float(np.median(tail)) + max(self.flat_gain, 2 * levels.noise)
                return min((start + int(np.argmax(there))) * levels.size, len(levels.raw_x) - 1)
        return len(levels.raw_x)

    def _validation_stuck(self, curve: Curve, curves: RunCurves) -> bool:
        """Whether the validation loss of the same place gained nothing over at least eight points."""
        for other in curves.validations:
            values = other.values[other.finite]
            if other.place == curve.place and len(values) >= 8 and values.min() > 0:
                third = len(values) // 3
                return bool(np.median(values[-third:]) > (1 - self.stuck_gain / 2) * np.median(values[:third]))
        return False

    def _episode(
        self, curve: Curve, start: int, before: float, last: float, gain: float, edge: int, of: str = ""
    ) -> Episode:
        steps = curve.steps[curve.finite]
        began, level = int(steps[start]), math.exp(last)
        only = "only " if gain < self.early_gain else ""
        moved = "did not change"
        if abs(gain) > 0.0005:
            moved = f"fell by {only}{gain:.1%}" if gain > 0 else f"rose by {-gain:.1%}"
        least = f" (threshold {self.stuck_gain:.0%})" if of else ""
        ended = f"to {level:.4g} over its last {edge}{'' if of else ' points'}"
        message = f"{curve.name} {moved}{least}: from {math.exp(before):.4g}{of} {ended}, "
        message += f"flat from step {began} to step {int(steps[-1])}"
        evidence = {"first": math.exp(before), "last": level, "gain": gain}
        classes = chance_of(level)
        if classes:
            evidence["classes"] = float(classes)
            message += f"; {level:.4g} is chance level for {classes} classes"
        return Episode(
            self.kind,
            Severity.WARNING,
            began,
            began,
            int(steps[-1]),
            message + ".",
            recovered=False,
            metric=curve.name,
            place=curve.place,
            attempt=curve.attempt,
            evidence=evidence,
            remedies=self.remedies,
        )


def _grown(nats: float) -> float:
    """The change of a level as a share of it."""
    return math.expm1(min(nats, 700.0))


def _resumed(curve: Curve) -> bool:
    """Whether the log begins so late that the start of the training is in another one."""
    first, last = int(curve.steps[0]), int(curve.steps[-1])
    distance = (last - first) / max(1, len(curve.steps) - 1)
    return first > 3 * distance and first > 0.1 * last
