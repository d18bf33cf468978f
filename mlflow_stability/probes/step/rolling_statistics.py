"""Statistics of the last hundred steps: means and deviations, a smoothed loss, its trend, the share of clipped steps.

Losses and norms that are not finite are left out; trainings side by side have statistics of their own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import TypeAlias

from mlflow_stability.vocabulary.measured.signal import Signal, is_whole_model
from mlflow_stability.vocabulary.measured.signal_type import SignalType

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
_QUANTITIES = frozenset({"loss", "grad_norm", "grad_norm_clipped", "loss_scale", "skipped_steps"})
MIN_STEPS = 10
_EMA_DECAY = 0.98
MAX_LAYOUTS = 64  # tuples of signals that are remembered; a training has a handful
_MAX_CLIPPED_RATIO = 0.9999
"""A step counts as clipped where clipping left less than this share of its norm: more may be rounding."""


class RollingStatistics:
    """Statistics of one recording, every `every` steps.

    Steps wait in `waiting` until statistics are due, as reading them together is faster.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._tracks: dict[str, _Track] = {}
        self._layouts: dict[int, tuple[tuple[Signal, ...], _Used]] = {}
        """By identity of a tuple of signals, the signals used; the tuple is kept so that no other gets its identity."""
        self._used: _Used = ()
        self.waiting: list[tuple[int, tuple[Signal, ...], Sequence[float]]] = []  # steps that were not read yet
        self.due_at = 0  # no statistics are due before this step

    def take(self, step: int, signals: tuple[Signal, ...], values: Sequence[float]) -> list[tuple[Signal, float]]:
        self.waiting.append((step, signals, values))
        return self.statistics(step) if step >= self.due_at or len(self.waiting) >= WINDOW else []

    def statistics(self, step: int) -> list[tuple[Signal, float]]:
        """Read the waiting steps and return the statistics that are due after this step, the last of them."""
        try:
            for at, signals, values in self.waiting:
                layout = self._layouts.get(id(signals))
                self._used = self._learn(signals, at) if layout is None else layout[1]
                for position, track, quantity in self._used:
                    track.take(quantity, values[position])
            self.waiting.clear()
        except BaseException:  # Ctrl-C: a step that was half read would make statistics wrong for long
            self.reset()
            raise
        if step < self.due_at:
            return []
        statistics: list[tuple[Signal, float]] = []
        window = step // self.every
        for _, track, _ in self._used:
            if window > track.reported_at // self.every:
                track.reported_at = step
                statistics += track.statistics()
        all_reported = all(track.reported_at // self.every >= window for track in self._tracks.values())
        self.due_at = (window + 1) * self.every if all_reported else step
        return statistics

    def reset(self) -> None:
        """Forget everything: the training was rolled back."""
        self._tracks.clear()
        self.waiting.clear()
        self._layouts.clear()
        self.due_at = 0

    def _learn(self, signals: tuple[Signal, ...], step: int) -> _Used:
        used = []
        for position, signal in enumerate(signals):
            if signal.quantity in _QUANTITIES and is_whole_model(signal.place):
                if signal.place not in self._tracks:
                    self._tracks[signal.place] = _Track(signal.place, step - 1)
                used.append((position, self._tracks[signal.place], signal.quantity))
        if len(self._layouts) >= MAX_LAYOUTS:
            self._layouts.clear()
        self._layouts[id(signals)] = signals, tuple(used)
        return tuple(used)


class _Track:
    def __init__(self, place: str, reported_at: int) -> None:
        self.reported_at = reported_at
        """The last step with statistics: a training without a capture in a due step reports in its next one."""
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
        """Add a value; the norm of a step comes before the clipped norm."""
        if not math.isfinite(value):
            return
        if quantity == "loss":
            self._losses.append(value)
            self._sum = _EMA_DECAY * self._sum + (1 - _EMA_DECAY) * value
            self._weight = _EMA_DECAY * self._weight + 1 - _EMA_DECAY
            self._fresh = True
        elif quantity == "grad_norm":
            self._norms.append(value)
            self._norm = value
        elif quantity in ("loss_scale", "skipped_steps"):
            if self._scale is None:
                self._scale = _LossScale(self._place)
            self._scale.take(quantity, value)
        else:
            self._clipped.append(value < self._norm * _MAX_CLIPPED_RATIO)

    def statistics(self) -> list[tuple[Signal, float]]:
        """Return the statistics of the last steps."""
        names, statistics = self._names, list[tuple[Signal, float]]()
        if self._fresh and len(self._losses) >= MIN_STEPS:
            mean, off = _mean_and_offsets(self._losses)
            spread = math.sqrt(_mean_square(off))
            statistics.append((names["loss_ema"], self._sum / self._weight))
            statistics.append((names["loss_mean"], mean))
            statistics.append((names["loss_std"], spread))
            count = len(off)
            slope: float = sum(map(mul, _places(count), off)) / (count * (count**2 - 1) / 12)
            statistics.append((names["loss_trend"], slope))
            statistics.append((names["loss_zscore"], (self._losses[-1] - mean) / spread if spread else 0.0))
            self._fresh = False
        if len(self._norms) >= MIN_STEPS:
            mean, off = _mean_and_offsets(self._norms)
            variance = _mean_square(off)
            statistics.append((names["grad_norm_mean"], mean))
            statistics.append((names["grad_norm_std"], math.sqrt(variance)))
            statistics.append((names["grad_variance"], variance))
        if len(self._clipped) >= MIN_STEPS:
            statistics.append((names["clip_fraction"], sum(self._clipped) / len(self._clipped)))
        return statistics + (self._scale.statistics() if self._scale is not None else [])


_Used: TypeAlias = tuple[tuple[int, _Track, str], ...]


class _LossScale:
    """The loss scale of one training: steps since it overflowed, and since it grew."""

    def __init__(self, place: str) -> None:
        self._names = (Signal("loss_scale_growth_tracker", place), Signal("loss_scale_steps_since_growth", place))
        self._scale = self._skipped = math.nan
        self._overflowed = False
        self._tracker = self._since_growth = 0

    def take(self, quantity: str, value: float) -> None:
        """Add a value; the number of skipped steps comes before the scale of a step."""
        if quantity == "skipped_steps":
            self._overflowed = value > self._skipped
            self._skipped = value
            return
        if value != self._scale:  # the scale changed, or this is the first step
            self._since_growth = 0 if value > self._scale else self._since_growth
            self._tracker = 0
        self._scale = value
        self._since_growth += 1
        self._tracker = 0 if self._overflowed else self._tracker + 1

    def statistics(self) -> list[tuple[Signal, float]]:
        """Return both counts; nothing without a scale."""
        if math.isnan(self._scale):
            return []
        return [(self._names[0], float(self._tracker)), (self._names[1], float(self._since_growth))]


def _mean_and_offsets(values: Sequence[float]) -> tuple[float, list[float]]:
    mean = math.fsum(values) / len(values)  # `fmean` and `pvariance` take several times as long
    return mean, list(map((-mean).__add__, values))


def _mean_square(off: Sequence[float]) -> float:
    return math.fsum(map(mul, off, off)) / len(off)


@lru_cache(maxsize=1)  # nearly always for a hundred
def _places(count: int) -> tuple[float, ...]:
    """The distances of this number of steps from the middle one."""
    return tuple([at - (count - 1) / 2 for at in range(count)])
