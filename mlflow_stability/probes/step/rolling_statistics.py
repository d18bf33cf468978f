"""What the last hundred steps say together: means and deviations, a smoothed loss, its trend, how many are clipped.

In: the signals of each step, as they were read. Out: every `every` steps, signals of the steps behind it:

    loss_ema         the loss, smoothed: each step weighs 2 % less than the one after it
    loss_mean        the mean loss of the last hundred, and
    loss_std         its standard deviation
    loss_trend       by how much the loss changes a step, on the straight line through the last hundred
    loss_zscore      how far this loss lies from the mean of the last hundred, in their standard deviations
    grad_norm_mean   the mean gradient norm of the last hundred, and
    grad_norm_std    its standard deviation
    grad_variance    its variance
    clip_fraction    the share of the last hundred steps whose gradients were clipped
    loss_scale_growth_tracker    steps in a row without an overflow, as `GradScaler` counts them until it grows
    loss_scale_steps_since_growth    steps since the loss scale last grew, or since the recording began

Guarantees: losses and norms that are not finite are left out; trainings side by side are kept apart.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import TypeAlias

from mlflow_stability.vocabulary.measured import Signal, SignalType, is_whole_model

SIGNALS = (
    SignalType("loss_ema", "smoothed loss", "loss_statistics", exported="llm_training_loss_ema"),
    SignalType("loss_mean", "mean of the loss over the last 100 steps", "loss_statistics"),
    SignalType("loss_std", "standard deviation of the loss over the last 100 steps", "loss_statistics"),
    SignalType(
        "loss_trend",
        "slope of the loss per step, over the last 100 steps",
        "loss_statistics",
        exported="llm_training_loss_trend",
    ),
    SignalType(
        "loss_zscore",
        "standard deviations of the loss from its mean over the last 100 steps",
        "loss_statistics",
        exported="llm_training_loss_zscore",
    ),
    SignalType("grad_norm_mean", "mean of the gradient norm over the last 100 steps", "gradients"),
    SignalType("grad_norm_std", "standard deviation of the gradient norm over the last 100 steps", "gradients"),
    SignalType(
        "grad_variance",
        "variance of the gradient norm over the last 100 steps",
        "gradients",
        exported="llm_gradient_variance",
    ),
    SignalType(
        "clip_fraction",
        "share of the last 100 steps that were clipped",
        "gradients",
        exported="llm_gradient_clip_fraction",
    ),
    SignalType(
        "loss_scale_growth_tracker",
        "steps in a row without an overflow since the scale of the `GradScaler` last changed",
        "optimizer",
        unit="{step}",
    ),
    SignalType(
        "loss_scale_steps_since_growth",
        "steps since that scale last grew, or since the recording began",
        "optimizer",
        unit="{step}",
    ),
)

WINDOW = 100
_WANTED = frozenset({"loss", "grad_norm", "grad_norm_clipped", "loss_scale", "skipped_steps"})
FEWEST = 10
"""Of fewer steps nothing is said."""
_KEPT = 0.98
MOST_LAYOUTS = 64
"""So many tuples of signals are remembered; a training has a handful."""
_CLIPPED_BELOW = 0.9999
"""A norm that is this much of what it was before: rounding alone does not do it."""


class RollingStatistics:
    """The last steps of one recording."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._tracks: dict[str, _Track] = {}
        self._layouts: dict[int, tuple[tuple[Signal, ...], _Wanted]] = {}
        """What is taken of each tuple of signals, by its identity; a tuple that is kept gives it to no other."""
        self._wanted: _Wanted = ()
        self.waiting: list[tuple[int, tuple[Signal, ...], Sequence[float]]] = []
        """Steps that were not looked at yet."""
        self.due_at = 0
        """Before this step there is nothing to say."""

    def take(self, step: int, signals: tuple[Signal, ...], values: Sequence[float]) -> list[tuple[Signal, float]]:
        """Take a step in; what is to be said after it."""
        self.waiting.append((step, signals, values))
        return self.say(step) if step >= self.due_at or len(self.waiting) >= WINDOW else []

    def say(self, step: int) -> list[tuple[Signal, float]]:
        """Take the steps in that wait; what is to be said after this one, the last of them."""
        try:
            for at, signals, values in self.waiting:
                known = self._layouts.get(id(signals))
                self._wanted = self._learn(signals, at) if known is None else known[1]
                for position, track, quantity in self._wanted:
                    track.take(quantity, values[position])
            self.waiting.clear()
        except BaseException:  # Ctrl-C: what was taken in by halves would tell wrong numbers for long
            self.reset()
            raise
        if step < self.due_at:
            return []
        found: list[tuple[Signal, float]] = []
        for _, track, _ in self._wanted:
            if step // self.every > track.said_at // self.every:
                track.said_at = step
                found += track.say()
        window = step // self.every
        all_told = all(each.said_at // self.every >= window for each in self._tracks.values())
        self.due_at = (window + 1) * self.every if all_told else step
        return found

    def reset(self) -> None:
        """Forget everything: the training was rolled back."""
        self._tracks.clear()
        self.waiting.clear()
        self._layouts.clear()
        self.due_at = 0

    def _learn(self, signals: tuple[Signal, ...], step: int) -> _Wanted:
        wanted = []
        for position, signal in enumerate(signals):
            if signal.quantity in _WANTED and is_whole_model(signal.place):
                if signal.place not in self._tracks:
                    self._tracks[signal.place] = _Track(signal.place, step - 1)
                wanted.append((position, self._tracks[signal.place], signal.quantity))
        if len(self._layouts) >= MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[id(signals)] = signals, tuple(wanted)
        return tuple(wanted)


class _Track:
    """One training."""

    def __init__(self, place: str, said_at: int) -> None:
        self.said_at = said_at
        """Up to which step all was said: a training that has no capture in the very step says it in its next one."""
        self._names = {
            name: Signal(name, place)
            for name in (
                *("loss_ema", "loss_mean", "loss_std", "loss_trend", "loss_zscore"),
                *("grad_norm_mean", "grad_norm_std", "grad_variance", "clip_fraction"),
            )
        }
        self._scale: _LossScale | None = None
        self._place = place
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._clipped: deque[bool] = deque(maxlen=WINDOW)
        self._sum = self._weight = 0.0
        self._norm = math.nan
        self._fresh = False

    def take(self, quantity: str, value: float) -> None:
        """Take a value in; the norm of a step comes before what clipping left of it."""
        if not math.isfinite(value):
            return
        if quantity == "loss":
            self._losses.append(value)
            self._sum = _KEPT * self._sum + (1 - _KEPT) * value
            self._weight = _KEPT * self._weight + 1 - _KEPT
            self._fresh = True
        elif quantity == "grad_norm":
            self._norms.append(value)
            self._norm = value
        elif quantity in ("loss_scale", "skipped_steps"):
            if self._scale is None:
                self._scale = _LossScale(self._place)
            self._scale.take(quantity, value)
        else:
            self._clipped.append(value < self._norm * _CLIPPED_BELOW)

    def say(self) -> list[tuple[Signal, float]]:
        """What the last steps say together."""
        names, found = self._names, []
        if self._fresh and len(self._losses) >= FEWEST:
            mean, off = _mean_and_offsets(self._losses)
            spread = math.sqrt(_mean_square(off))
            found.append((names["loss_ema"], self._sum / self._weight))
            found.append((names["loss_mean"], mean))
            found.append((names["loss_std"], spread))
            found.append((names["loss_trend"], _slope(off)))
            found.append((names["loss_zscore"], (self._losses[-1] - mean) / spread if spread else 0.0))
            self._fresh = False
        if len(self._norms) >= FEWEST:
            mean, off = _mean_and_offsets(self._norms)
            variance = _mean_square(off)
            found.append((names["grad_norm_mean"], mean))
            found.append((names["grad_norm_std"], math.sqrt(variance)))
            found.append((names["grad_variance"], variance))
        if len(self._clipped) >= FEWEST:
            found.append((names["clip_fraction"], sum(self._clipped) / len(self._clipped)))
        return found + (self._scale.say() if self._scale is not None else [])


_Wanted: TypeAlias = tuple[tuple[int, _Track, str], ...]


class _LossScale:
    """The loss scale of one training: how long it has not overflowed, and not grown."""

    def __init__(self, place: str) -> None:
        self._names = (
            Signal("loss_scale_growth_tracker", place),
            Signal("loss_scale_steps_since_growth", place),
        )
        self._scale = self._skipped = math.nan
        self._overflowed = False
        self._tracker = self._since_growth = 0

    def take(self, quantity: str, value: float) -> None:
        """Take a value in; the number of skipped steps comes before the scale of a step."""
        if quantity == "skipped_steps":
            self._overflowed = value > self._skipped
            self._skipped = value
            return
        if value != self._scale:  # it changes between two steps, or this is the first one
            self._since_growth = 0 if value > self._scale else self._since_growth
            self._tracker = 0
        self._scale = value
        self._since_growth += 1
        self._tracker = 0 if self._overflowed else self._tracker + 1

    def say(self) -> list[tuple[Signal, float]]:
        """What is known after this step."""
        if math.isnan(self._scale):
            return []
        return [(self._names[0], float(self._tracker)), (self._names[1], float(self._since_growth))]


def _mean_and_offsets(values: Sequence[float]) -> tuple[float, list[float]]:
    """Their mean, and by how much each is more."""
    mean = math.fsum(values) / len(values)  # `fmean` and `pvariance` take several times as long for the same
    return mean, list(map((-mean).__add__, values))


def _mean_square(off: Sequence[float]) -> float:
    return math.fsum(map(mul, off, off)) / len(off)


def _slope(off: Sequence[float]) -> float:
    """Of the straight line through values one step apart, from their offsets."""
    count = len(off)
    total: float = sum(map(mul, _places(count), off))
    return total / (count * (count**2 - 1) / 12)


@lru_cache(maxsize=1)  # nearly always of a hundred
def _places(count: int) -> tuple[float, ...]:
    """How far each of so many steps is from the middle one."""
    return tuple([at - (count - 1) / 2 for at in range(count)])
