"""Chooses the few points of a recording that MLflow's metric tables get; the full record is kept elsewhere.

In: the readings of one recording, in order. Out: points. Kept are

- of every whole-model signal, for each optimizer's group and each training beside the first (and for layers, where
  they were asked for): the first value, then those at multiples of `every` (a signal measured more rarely than that
  keeps all its values), at the steps of events, and, from `rest`, the last one: of several trainings side by side
  only one has it in the last reading;
- the extremes of what lies between two kept points, under names of their own (`loss_max`), so that a spike of one
  step is never thinned away and the series itself is not biased;
- how many losses and gradient norms were not finite, for a chart does not show those.

Guarantees: the same readings give the same points, also when the work is cut at any reading and taken up again from
`saved()`; a storm of events cannot undo the thinning.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

from mlflow_stability.tracking.write.layer_metrics import Chosen, LayerMetrics, chosen_signals
from mlflow_stability.vocabulary.measured import Signal, SignalType, StepReading

SIGNALS = (
    SignalType("loss_min", "least loss since the last point of the chart", "loss_statistics", interval="every step"),
    SignalType(
        "loss_max",
        "largest loss since the last point of the chart, so that a spike of one step stays visible",
        "loss_statistics",
        interval="every step",
    ),
    SignalType(
        "grad_norm_max", "largest gradient norm since the last point of the chart", "gradients", interval="every step"
    ),
    SignalType(
        "step_time_max", "longest step since the last point of the chart", "timing", unit="s", interval="every step"
    ),
    SignalType(
        "nonfinite_values",
        "losses and gradient norms that were NaN or infinite so far; charts do not show those",
        "loss_statistics",
        interval="every step",
    ),
)

LOGGED_BY_THE_SCRIPT = frozenset({"val_loss", "val_loss_step"})
"""What was heard of the script's own metrics: MLflow has it already, and must not get it twice."""
_EXTREMES = {"loss": ("min", "max"), "grad_norm": ("max",), "step_time": ("max",)}
_COUNTED = ("loss", "grad_norm")
_NONFINITE = Signal("nonfinite_values")
_MOST_MARKED = 10  # event steps kept between two multiples of `every`
_MOST_LAYOUTS = 32


@dataclass(frozen=True, slots=True)
class Point:
    """One value on its way to a metric table."""

    signal: Signal
    step: int
    value: float
    time: float


@dataclass(slots=True, eq=False)
class _Layout:
    """What of one layout is kept or looked at; a journal gives the same tuple again for the same signals."""

    signals: tuple[Signal, ...]
    chosen: tuple[Chosen, ...]
    watched: tuple[tuple[int, str], ...]
    newest: StepReading | None = None
    """The last reading of this layout, unless its last values are known already."""


def is_of_the_script(reading: StepReading) -> bool:
    """Whether this is no step that was measured, but what the script has logged after it."""
    return all(signal.quantity in LOGGED_BY_THE_SCRIPT for signal in reading.signals)


class Thinner:
    """Decides, reading by reading, what is kept."""

    def __init__(self, every: int, layers: LayerMetrics = "") -> None:
        self.every = every
        """Every how many steps a point is kept."""
        self._kept: dict[Signal, int] = {}
        self._windows: dict[str, tuple[float, float]] = {}
        self._nonfinite = 0
        self._marked = (0, 0)
        self._layouts: dict[int, _Layout] = {}
        """By the identity of the signals: those of trainings side by side alternate."""
        self._left: dict[Signal, Point] = {}
        """Last values that were not kept, as far as they were gathered."""
        self._layers = layers

    def points(self, reading: StepReading, marked: bool = False) -> list[Point]:
        """What is kept of a reading; all of it if it is marked: an event happened there."""
        layout = self._layouts.get(id(reading.signals)) or self._learn(reading.signals)
        layout.newest = reading
        self._look(layout, reading)
        step, every, kept = reading.step, self.every, self._kept
        if step % every == 0 or (marked and self._may_mark(step)):
            due = [each for each in layout.chosen if kept.get(each.signal) != step]
        else:
            due = [each for each in layout.chosen if step - kept.get(each.signal, step - every) >= every]
        found: list[Point] = []
        for each in due:
            signal = each.signal
            kept[signal] = step
            found.append(Point(signal, step, each.value(reading.values), reading.time))
            if signal.quantity in self._windows and not signal.place:
                found.extend(self._extremes(signal.quantity, step, reading.time))
        if found and self._nonfinite and kept.get(_NONFINITE) != step:  # of trainings side by side the first tells it
            kept[_NONFINITE] = step
            found.append(Point(_NONFINITE, step, self._nonfinite, reading.time))
        return found

    def rest(self) -> list[Point]:
        """The last value of every signal, where it was not kept yet: the recording is over."""
        self._gather()
        found: list[Point] = []
        for point in sorted(self._left.values(), key=lambda point: point.step):
            self._kept[point.signal] = point.step
            found.append(point)
            if point.signal.quantity in self._windows and not point.signal.place:
                found.extend(self._extremes(point.signal.quantity, point.step, point.time))
        self._left.clear()
        return found

    def saved(self) -> dict[str, Any]:
        """Everything that is needed to go on from here, as plain JSON."""
        self._gather()
        return {
            "every": self.every,
            "kept": [[signal.quantity, signal.place, step] for signal, step in self._kept.items()],
            "windows": {quantity: list(window) for quantity, window in self._windows.items()},
            "nonfinite": self._nonfinite,
            "marked": list(self._marked),
            # JSON has no words for what is not finite, so values stand there as text.
            "left": [[*astuple(each.signal), each.step, repr(each.value), each.time] for each in self._left.values()],
        }

    @classmethod
    def resumed(cls, saved: dict[str, Any], layers: LayerMetrics = "") -> Thinner:
        """Go on where `saved` was called."""
        thinner = cls(saved["every"], layers)
        thinner._kept = {Signal(quantity, place): step for quantity, place, step in saved["kept"]}
        thinner._windows = {quantity: (low, high) for quantity, (low, high) in saved["windows"].items()}
        thinner._nonfinite = saved["nonfinite"]
        window, count = saved["marked"]
        thinner._marked = (window, count)
        for quantity, place, step, value, when in saved.get("left", ()):
            signal = Signal(quantity, place)
            thinner._left[signal] = Point(signal, step, float(value), when)
        return thinner

    def _learn(self, signals: tuple[Signal, ...]) -> _Layout:
        if len(self._layouts) >= _MOST_LAYOUTS:
            self._gather()
            self._layouts.clear()
        watched = tuple(
            (position, signal.quantity)
            for position, signal in enumerate(signals)
            if not signal.place and (signal.quantity in _EXTREMES or signal.quantity in _COUNTED)
        )
        layout = self._layouts[id(signals)] = _Layout(signals, chosen_signals(signals, self._layers), watched)
        return layout

    def _gather(self) -> None:
        """Take the last values of signals out of the last readings; what was kept since is left no more."""
        for layout in self._layouts.values():
            reading, layout.newest = layout.newest, None
            if reading is None:
                continue
            for each in layout.chosen:
                known = self._left.get(each.signal)
                if known is None or known.step < reading.step:
                    value = each.value(reading.values)
                    self._left[each.signal] = Point(each.signal, reading.step, value, reading.time)
        self._left = {signal: each for signal, each in self._left.items() if self._kept.get(signal, 0) < each.step}

    def _look(self, layout: _Layout, reading: StepReading) -> None:
        """Widen the windows by this reading, and count what is not finite."""
        for position, quantity in layout.watched:
            value = reading.values[position]
            if math.isfinite(value):
                low, high = self._windows.get(quantity, (value, value))
                self._windows[quantity] = (min(low, value), max(high, value))
            elif quantity in _COUNTED:
                self._nonfinite += 1

    def _may_mark(self, step: int) -> bool:
        window, count = self._marked
        here = step // self.every
        self._marked = (here, count + 1 if window == here else 1)
        return self._marked[1] <= _MOST_MARKED

    def _extremes(self, quantity: str, step: int, time: float) -> list[Point]:
        low, high = self._windows.pop(quantity)
        ends = {"min": low, "max": high}
        return [Point(Signal(f"{quantity}_{end}"), step, ends[end], time) for end in _EXTREMES[quantity]]
