"""Says when a validation loss rises while the training loss goes on falling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.detectors.chance import stays_at_chance
from mlflow_stability.detectors.overfitting import Overfitting
from mlflow_stability.diagnosis.curves import Curve, RunCurves
from mlflow_stability.diagnosis.levels import noise_of
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity


@dataclass(frozen=True, slots=True)
class OverfittingRule:
    """The validation loss rose by 10 % or more from its best while the training loss went on falling.

    What it sees: a training loss and the validation loss of the same place. The last fifth of the validations, at least
    three of them, lies 10 % above the best of the smoothed curve, by more than chance, most of its points one by one,
    and the training loss is lower at the end than it was at that best step, and is not what guessing costs.

    Why it matters: the model learns its training data by heart; the weights of the best step were better than the last.

    What to try: keep the checkpoint of the best step; stop early; more data, augmentation, dropout, weight decay.

    When it is wrong: validation losses of overconfident classifiers rise while their accuracy still does, too; a
    validation in another precision or with averaged weights measures another model.

    Reference: Prechelt 1998, Early stopping - but when?
    """

    kind: ClassVar[str] = "overfitting"
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)
    remedies: ClassVar[tuple[str, ...]] = Overfitting.remedies

    fewest_validations: int = 6
    """Fewer validations are not judged."""
    smallest_rise: float = math.log(1.10)
    """How far the end of the validation loss is above its best, in nats: 10 %."""
    chance: float = 2.0
    """And how many standard deviations of chance, beyond the luck that the best of many levels has."""
    most_above: float = 0.7
    """The share of those last validations that are above the best by half of that."""
    smallest_fall: float = math.log(1.02)
    """How much lower the training loss is at the end than at the best validation, in nats: 2 %."""
    tail: float = 0.2
    """The share of the validations that count as the end."""

    def find(self, curves: RunCurves) -> list[Episode]:
        """One finding for each validation loss; its parts only where the whole of it tells nothing."""
        found: list[Episode] = []
        for validation in sorted(curves.validations, key=lambda each: each.place != ""):
            training = next((each for each in curves.losses if _belongs(each, validation)), None)
            if training is None or validation.game or (found and validation.place):
                continue
            found += self._of(training, validation)
        return found

    def _of(self, training: Curve, validation: Curve) -> list[Episode]:
        values, steps = validation.values[validation.finite], validation.steps[validation.finite]
        if len(values) < self.fewest_validations or values.min() <= 0:
            return []
        x = np.log(values)
        count, width = max(3, round(self.tail * len(x))), max(3, len(x) // 10)
        held = np.median(np.lib.stride_tricks.sliding_window_view(x[: max(width, len(x) - count + 1)], width), axis=1)
        at = int(np.argmin(held))
        best, level = at + int(np.argmin(x[at : at + width])), float(held[at])
        late = x[max(best + 1, len(x) - count) :]
        if len(late) < 2:
            return []
        rise = float(late.mean()) - level
        above = float((late > level + self.smallest_rise / 2).mean())
        if rise < max(self.smallest_rise, self._by_chance(x, len(late), width)) or above < self.most_above:
            return []
        before, now = _from_to(training, int(steps[best]), int(steps[-1]))
        if not 0 < now < before * math.exp(-self.smallest_fall) or stays_at_chance(before, now):
            return []
        peak = best + int(np.argmax(x[best:]))
        lowest, last = math.exp(level), math.exp(float(np.median(late)))
        message = (
            f"{validation.name} rose from {lowest:.4g} at step {int(steps[best])} to {last:.4g} at the end "
            f"(+{last / lowest - 1:.0%}) while {training.name} fell by {1 - now / before:.0%}."
        )
        return [
            Episode(
                self.kind,
                Severity.WARNING,
                int(steps[min(best + 1, len(steps) - 1)]),
                int(steps[peak]),
                int(steps[-1]),
                message,
                recovered=False,
                metric=validation.name,
                place=validation.place,
                attempt=validation.attempt,
                evidence={"best": lowest, "best_step": float(steps[best]), "last": last},
                remedies=self.remedies,
            )
        ]

    def _by_chance(self, x: NDArray[np.float64], late: int, width: int) -> float:
        """How far the end would be above the best of so many levels if the curve were flat and only noisy."""
        half = x[: len(x) // 2]
        noise = min(noise_of(x), noise_of(half)) if len(half) >= 8 else noise_of(x)
        luck = math.sqrt(2 * math.log(len(x) / width)) * 1.25 / math.sqrt(width)
        return noise * (1 + 2 / len(x)) * (self.chance / math.sqrt(late) + luck)


def _belongs(training: Curve, validation: Curve) -> bool:
    return training.place == validation.place and training.attempt == validation.attempt


def _from_to(training: Curve, best_step: int, last_step: int) -> tuple[float, float]:
    """The training loss around the best validation and at the end; zeros where that cannot be said."""
    values, steps = training.values[training.finite], training.steps[training.finite]
    if len(values) < 4 or values.min() <= 0:
        return 0.0, 0.0
    reach = max(1, len(values) // 10)
    there = int(np.searchsorted(steps, best_step))
    before = values[max(0, there - reach) : there + reach]
    after = values[steps <= max(last_step, int(steps[0]))][-2 * reach :]
    if not len(before) or not len(after):
        return 0.0, 0.0
    return float(np.median(before)), float(np.median(after))
