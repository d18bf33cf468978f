"""Find updates in whole curves that stayed large to the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.kinds.rule import Rule, present
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import LOWER_RATE_5_TO_10, Action, Finding, Remedy, Severity


def fell_by(share: float, only: str = "") -> str:
    """Return in words how far a loss fell, as a share of it: ``fell by 3.0%``, or ``rose by 3.0%``."""
    return f"fell by {only}{share:.1%}" if share >= 0 else f"rose by {-share:.1%}"


@dataclass(frozen=True, slots=True)
class LargeUpdatesFacts(Facts):
    """Updates that stayed large while the loss hardly fell."""

    kind = "large_updates"

    signal: str  # The loss, by the name that the log gives it
    update_ratio: float  # Median update norm, as a share of the weight norm
    limit: float  # From which share on updates are large
    late_fall: float  # How far the loss fell in that time, as a share; below zero where it rose

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"update ratio about {self.update_ratio:.2g} from {unit} {step} to the end (threshold {self.limit:g} "
            f"while {self.signal} hardly falls; it {fell_by(self.late_fall)} in that time)."
        )


@dataclass(frozen=True, slots=True)
class LargeUpdatesRule(Rule):
    """Updates stayed large to the end of a training whose loss hardly fell.

    What it sees: a loss that fell by less than {most_gain:exp_fall} in all, and by less than {late_gain:exp_fall} after
    {early:percent} of the run, while the updates were {lowest_ratio} of the weight norm or more, both in the median of
    that time and at the end. It needs {fewest_points} losses and {fewest_ratios} measured updates. INFO below
    {replacing:percent} of the weight norm where {plain:percent} of the updates are within {of_rate:percent} of the
    learning rate times the gradient norm, as with plain SGD: such updates shrink with the gradient, and a lower rate
    often ends higher. Recurrent language models are trained so.

    When it is wrong: data that cannot be learnt better. A lower rate then changes nothing. Of 82 healthy trainings none
    has a ratio above 0.0165 for so long while its loss has a level.
    """

    kind = "update_ratio_high"
    order = 180
    remedies = (LOWER_RATE_5_TO_10, Remedy(Action.LENGTHEN_WARM_UP))

    lowest_ratio: float = 0.02  # minimum ratio of update norm to weight norm
    most_gain: float = math.log(2)  # maximum fall of the loss from its start to its end, in nats: to its half
    late_gain: float = -math.log(0.88)
    """Maximum fall from the end of `early` to the end of the run, in nats: {late_gain:exp_fall}."""
    early: float = 0.2  # share of the run after which the loss should still fall
    plain: float = 0.9  # minimum share of the updates that are those of plain SGD, ..
    of_rate: float = 0.05
    """... with at most this relative difference from the learning rate times the (clipped) gradient norm."""
    replacing: float = 0.08
    """Ratio from which updates of plain SGD are a warning as well. Above it, a tenth of the rate ended lower in 4 of 4
    short trainings; below it in 1 of 5, whose loss stayed above chance level."""
    fewest_points: int = 200  # minimum number of losses
    fewest_ratios: int = 10  # minimum number of measured updates after the early share

    def find(self, curves: RunCurves) -> list[Finding]:
        return present(self._judge(loss, curves) for loss in curves.losses if not loss.part and loss.has_level)

    def _judge(self, loss: Curve, curves: RunCurves) -> Finding | None:
        updates = (curve for curve in curves.updates if (curve.attempt, curve.place) == (loss.attempt, loss.place))
        ratio = next(updates, None)
        values, steps = loss.values[loss.finite], loss.steps[loss.finite]
        if ratio is None or len(values) < self.fewest_points or values.min() <= 0:
            return None
        x, tenth = np.log(values), len(values) // 10
        first, last = float(np.median(x[: max(3, tenth // 5)])), float(np.median(x[-tenth:]))
        start = round(self.early * len(x))
        early = float(np.median(x[start : start + tenth]))
        if first - last > self.most_gain or early - last > self.late_gain or last > first:
            return None
        ratios = ratio.values[ratio.finite & (ratio.steps >= steps[start])]
        if len(ratios) < self.fewest_ratios:
            return None
        usual, end = float(np.median(ratios)), float(np.median(ratios[-max(3, len(ratios) // 10) :]))
        if min(usual, end) < self.lowest_ratio:
            return None
        facts = LargeUpdatesFacts(loss.name, usual, self.lowest_ratio, 1 - math.exp(last - early))
        is_plain = usual < self.replacing and self._is_plain_descent(loss, curves, int(steps[start]))
        return self.finding(loss, Severity.INFO if is_plain else Severity.WARNING, facts, steps[start], steps[-1])

    def _is_plain_descent(self, loss: Curve, curves: RunCurves, since: int) -> bool:
        """Whether nearly all updates since a step are the learning rate times the gradient norm, after clipping."""
        rate = next((curve for curve in curves.rates if curve.attempt == loss.attempt), None)
        moves, norms, clipped = (_own_of(several, loss) for several in (curves.moves, curves.norms, curves.clipped))
        if rate is None or moves is None or norms is None:
            return False
        measured, rates = _by_step(norms, since), _by_step(rate, since)
        if clipped is not None:
            measured |= _by_step(clipped, since)
        plain = [
            abs(move - rates[step] * measured[step]) <= self.of_rate * move
            for step, move in _by_step(moves, since).items()
            if step in measured and step in rates
        ]
        return len(plain) >= self.fewest_ratios and sum(plain) >= self.plain * len(plain)


def _own_of(curves: Sequence[Curve], loss: Curve) -> Curve | None:
    return next((curve for curve in curves if (curve.attempt, curve.place) == (loss.attempt, loss.place)), None)


def _by_step(curve: Curve, since: int) -> dict[int, float]:
    chosen = curve.finite & (curve.steps >= since)
    return dict(zip(curve.steps[chosen].tolist(), curve.values[chosen].tolist(), strict=True))
