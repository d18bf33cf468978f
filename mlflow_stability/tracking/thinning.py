"""Choose the few points of a recording that MLflow's metric tables get; the full record is kept elsewhere.

Kept are

- of every signal of the whole model, of each optimizer's group and of each training beside the first (and of layers, if
  asked for): the first value, then those at multiples of `every` (a signal that is measured more rarely keeps all its
  values), at the steps of events, and, from `rest`, the last one;
- the extremes of what lies between two kept points, under names of their own (`loss_max`), so that a spike of one
  step is never thinned away and the series itself is not biased;
- how many losses and gradient norms were not finite, because a chart does not show those.

What has a single value is no curve and is held back until it changes. Guarantees: the same readings give the same
points, also when the work is cut at any reading and resumed from `saved()`; many events cannot undo the thinning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.measured.signal_type import Combined, SignalType, signals, type_of
from mlflow_stability.vocabulary.text.recorded_keys import MAIN_CHARTS

SIGNALS = signals(
    SignalType("loss_min", "least loss since the last point of the chart", topic="loss_statistics"),
    SignalType(
        "loss_max",
        "largest loss since the last point of the chart, so that a spike of one step stays visible",
        topic="loss_statistics",
    ),
    SignalType("grad_norm_max", "largest gradient norm since the last point of the chart", topic="gradients"),
    SignalType("step_time_max", "longest step since the last point of the chart", topic="timing", unit="s"),
    SignalType(
        "nonfinite_values",
        "losses and gradient norms that were NaN or infinite so far; charts do not show those",
        topic="loss_statistics",
    ),
    interval="every step",
)

LOGGED_BY_THE_SCRIPT = frozenset({"val_loss", "val_loss_step"})
"""Quantities of the script's own metrics: MLflow has them already."""
UNNUMBERED = "unnumbered"  # name of the layers of a module that are in none of its numbered blocks
ENTROPY = "attention_entropy"
UNIQUE = "sdr_unique_ratio"
CODES = (UNIQUE, "sdr_active_bits", "sdr_bit_usage", "sdr_duty_entropy", "sdr_temperature")
"""Quantities of a module with sparse codes that become metrics."""
MAX_CODE_MODULES = 4  # maximum number of modules with sparse codes that have metrics; of more, those at even distances
MAX_EVENT_STEPS = 10  # kept between two multiples of `every`
MAX_LAYOUTS = 32
LayerMetrics = Literal["", "blocks", "parameters"]
_EXTREMES = {"loss": ("min", "max"), "grad_norm": ("max",), "step_time": ("max",)}
_COUNTED = ("loss", "grad_norm")
_NONFINITE = Signal("nonfinite_values")
_HEAD = re.compile(r"(?P<layer>.+)\.head_\d+")
_COMBINE: dict[Combined, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "norm": lambda values: math.sqrt(sum(value * value for value in values)),
    "min": min,
    "max": max,
}


@dataclass(frozen=True, slots=True)
class Point:
    """One value on its way to a metric table."""

    signal: Signal
    step: int
    value: float
    time: float

    def saved(self) -> list[Any]:
        """Return the point as plain JSON, which has no number for NaN and infinities."""
        return [*astuple(self.signal), self.step, repr(self.value), self.time]

    @classmethod
    def of_saved(cls, values: Sequence[Any]) -> Point:
        quantity, place, step, value, time = values
        return cls(Signal(quantity, place), step, float(value), time)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A signal for a metric, and the positions of its values in the reading."""

    signal: Signal
    positions: tuple[int, ...]
    inputs: int | None = None  # position of the share of inputs that differ: at most as many codes can differ
    combined: Combined = "mean"  # how several values are combined

    def value(self, values: Sequence[float]) -> float:
        if self.inputs is not None and values[self.inputs] > 0:
            return min(values[self.positions[0]] / values[self.inputs], 1.0)
        if len(self.positions) == 1:
            return values[self.positions[0]]
        return _COMBINE[self.combined]([values[position] for position in self.positions])


def chosen_signals(signals: Sequence[Signal], layers: LayerMetrics) -> tuple[Chosen, ...]:
    """Return what becomes a metric: everything of the whole model, and of its layers what `layers` asks for.

    By default a layer is no metric: a model of a thousand layers would fill a store with what the full record holds
    anyway. What is measured rarely has a few: of attention the mean entropy of the heads of each layer; of sparse codes
    five numbers for at most four modules; of activations mean and largest shares of dead and saturated units; of each
    router the evenness of its shares and its largest logit.
    """
    chosen: list[Chosen] = []
    blocks: dict[Signal, list[int]] = {}
    summarised: dict[str, list[int]] = {}
    modules = [signal.place for signal in signals if signal.quantity == UNIQUE and signal.place]
    count = min(len(modules), MAX_CODE_MODULES)
    code_modules = frozenset(modules[round(at * (len(modules) - 1) / max(1, count - 1))] for at in range(count))
    inputs = {signal.place: position for position, signal in enumerate(signals) if signal.quantity == "sdr_input_ratio"}
    for position, signal in enumerate(signals):
        whole = not signal.place or is_group(signal.place)
        signal_type = type_of(signal.quantity)
        if signal_type is not None and signal_type.summary and not whole:
            summarised.setdefault(signal.quantity, []).append(position)
        if whole or layers == "parameters" or (signal_type is not None and signal_type.every_place):
            chosen.append(Chosen(signal, (position,)))
        elif signal.quantity in CODES and signal.place in code_modules:
            chosen.append(Chosen(signal, (position,), inputs.get(signal.place) if signal.quantity == UNIQUE else None))
        elif signal.quantity == ENTROPY and (head := _HEAD.fullmatch(signal.place)):
            blocks.setdefault(Signal(ENTROPY, head["layer"]), []).append(position)
        elif layers == "blocks":
            blocks.setdefault(Signal(signal.quantity, block_of(signal.place)), []).append(position)
    for quantity, positions in summarised.items():
        signal_type = type_of(quantity)
        ends = () if signal_type is None else signal_type.summary
        chosen += [Chosen(Signal(f"{quantity}_{end}"), tuple(positions), combined=end) for end in ends]
    for signal, positions in blocks.items():
        signal_type = type_of(signal.quantity)
        combined: Combined = "mean" if signal_type is None else signal_type.combined
        chosen.append(Chosen(signal, tuple(positions), combined=combined))
    return tuple(chosen)


def block_of(place: str) -> str:
    """Return the block that a layer belongs to: ``transformer.h.3`` for ``transformer.h.3.attn.proj``.

    Layers in no numbered block are combined: ``transformer.unnumbered`` for ``transformer.wte``. The name
    ``transformer`` would read as if it were all of it.
    """
    words = place.split(".")
    numbered = next((number for number, word in enumerate(words) if word.isdigit()), None)
    if numbered is not None:
        return ".".join(words[: numbered + 1])
    return place if len(words) == 1 else f"{words[0]}.{UNNUMBERED}"


@dataclass(slots=True, eq=False)
class _Layout:
    """The kept and the watched signals of one layout; a journal gives the same tuple again for the same signals."""

    signals: tuple[Signal, ...]
    chosen: tuple[Chosen, ...]
    watched: tuple[tuple[int, str], ...]
    newest: StepReading | None = None  # the last reading of this layout, unless its values are in `_unsent`


def is_of_the_script(reading: StepReading) -> bool:
    """Return whether a reading is what the script has logged after a step, and no step that was measured."""
    return all(signal.quantity in LOGGED_BY_THE_SCRIPT for signal in reading.signals)


class Thinner:
    """Chooses the points to keep, reading by reading."""

    def __init__(self, every: int, layers: LayerMetrics = "") -> None:
        self.every = every  # number of steps between two points
        self._layers = layers
        self._kept: dict[Signal, int] = {}
        self._windows: dict[str, tuple[float, float]] = {}
        self._nonfinite = 0
        self._event_steps = (0, 0)
        self._layouts: dict[int, _Layout] = {}
        """By the identity of the signals: those of trainings side by side alternate."""
        self._unsent: dict[Signal, Point] = {}  # last values that were not kept, as far as they were collected

    def points(self, reading: StepReading, marked: bool = False) -> list[Point]:
        """Return the points to keep of a reading; all of them if it is marked, because of an event."""
        layout = self._layouts.get(id(reading.signals)) or self._new_layout(reading.signals)
        layout.newest = reading
        self._watch(layout, reading)
        step, every, kept = reading.step, self.every, self._kept
        if step % every == 0 or (marked and self._may_mark(step)):
            due = [choice for choice in layout.chosen if kept.get(choice.signal) != step]
        else:
            due = [choice for choice in layout.chosen if step - kept.get(choice.signal, step - every) >= every]
        points: list[Point] = []
        for choice in due:
            points += self._keep(Point(choice.signal, step, choice.value(reading.values), reading.time))
        # Trainings side by side have several readings in a step: the first one reports the count.
        if points and self._nonfinite and kept.get(_NONFINITE) != step:
            kept[_NONFINITE] = step
            points.append(Point(_NONFINITE, step, self._nonfinite, reading.time))
        return points

    def rest(self) -> list[Point]:
        """Return the last value of every signal that was not kept, at the end of the recording.

        Of several trainings side by side, only one is in the last reading.
        """
        self._collect_unsent()
        points: list[Point] = []
        for point in sorted(self._unsent.values(), key=lambda point: point.step):
            points += self._keep(point)
        self._unsent.clear()
        return points

    def _keep(self, point: Point) -> list[Point]:
        signal, quantity = point.signal, point.signal.quantity
        self._kept[signal] = point.step
        if quantity not in self._windows or signal.place:
            return [point]
        extremes = dict(zip(("min", "max"), self._windows.pop(quantity), strict=True))
        return [
            point,
            *(Point(Signal(f"{quantity}_{end}"), point.step, extremes[end], point.time) for end in _EXTREMES[quantity]),
        ]

    def saved(self) -> dict[str, Any]:
        """Return the whole state as plain JSON."""
        self._collect_unsent()
        return {
            "every": self.every,
            "kept": [[signal.quantity, signal.place, step] for signal, step in self._kept.items()],
            "windows": {quantity: list(window) for quantity, window in self._windows.items()},
            "nonfinite": self._nonfinite,
            "marked": list(self._event_steps),
            "left": [point.saved() for point in self._unsent.values()],
        }

    @classmethod
    def resumed(cls, saved: dict[str, Any], layers: LayerMetrics = "") -> Thinner:
        thinner = cls(saved["every"], layers)
        thinner._kept = {Signal(quantity, place): step for quantity, place, step in saved["kept"]}
        thinner._windows = {quantity: (low, high) for quantity, (low, high) in saved["windows"].items()}
        thinner._nonfinite = saved["nonfinite"]
        window, count = saved["marked"]
        thinner._event_steps = (window, count)
        points = map(Point.of_saved, saved.get("left", ()))
        thinner._unsent = {point.signal: point for point in points}
        return thinner

    def _new_layout(self, signals: tuple[Signal, ...]) -> _Layout:
        if len(self._layouts) >= MAX_LAYOUTS:
            self._collect_unsent()
            self._layouts.clear()
        watched = tuple(
            (position, signal.quantity)
            for position, signal in enumerate(signals)
            if not signal.place and (signal.quantity in _EXTREMES or signal.quantity in _COUNTED)
        )
        layout = self._layouts[id(signals)] = _Layout(signals, chosen_signals(signals, self._layers), watched)
        return layout

    def _collect_unsent(self) -> None:
        """Collect the last values of signals from the last readings, without those that were kept since."""
        for layout in self._layouts.values():
            reading, layout.newest = layout.newest, None
            if reading is None:
                continue
            for choice in layout.chosen:
                unsent = self._unsent.get(choice.signal)
                if unsent is None or unsent.step < reading.step:
                    value = choice.value(reading.values)
                    self._unsent[choice.signal] = Point(choice.signal, reading.step, value, reading.time)
        self._unsent = {
            signal: point for signal, point in self._unsent.items() if self._kept.get(signal, 0) < point.step
        }

    def _watch(self, layout: _Layout, reading: StepReading) -> None:
        """Widen the windows by this reading, and count non-finite values."""
        for position, quantity in layout.watched:
            value = reading.values[position]
            if math.isfinite(value):
                low, high = self._windows.get(quantity, (value, value))
                self._windows[quantity] = (min(low, value), max(high, value))
            elif quantity in _COUNTED:
                self._nonfinite += 1

    def _may_mark(self, step: int) -> bool:
        window, count = self._event_steps
        current = step // self.every
        self._event_steps = (current, count + 1 if window == current else 1)
        return self._event_steps[1] <= MAX_EVENT_STEPS


class SingleValues:
    """Holds back the points of signals that have had one value; the main charts are there from their second point on.

    Guarantees: the same points give the same ones, also when resumed from `saved()`.
    """

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """`saved`: the state of a thinner, with that of this class in it unless a version before it wrote it."""
        state = saved or {}
        held = ((Point.of_saved(first), Point.of_saved(last)) for first, last in state.get("held", ()))
        self._held = {first.signal: (first, last) for first, last in held}
        """First and last point of each signal that has had one value."""
        # Versions without this class sent everything that was chosen.
        self._curves = {Signal(quantity, place) for quantity, place, *_ in state.get("curves", state.get("kept", ()))}

    def of_curves(self, points: Sequence[Point]) -> list[Point]:
        sent: list[Point] = []
        for point in points:
            sent += [point] if point.signal in self._curves else self._hold(point)
        return sent

    def saved(self) -> dict[str, Any]:
        """Return the whole state as plain JSON."""
        return {
            "held": [[first.saved(), last.saved()] for first, last in self._held.values()],
            "curves": [[signal.quantity, signal.place] for signal in self._curves],
        }

    def _hold(self, point: Point) -> list[Point]:
        """Hold a point back, or return it with the earlier ones if the value has changed."""
        first, last = self._held.pop(point.signal, (None, None))
        if first is None or last is None:
            self._held[point.signal] = (point, point)
            return []
        same = first.value == point.value or (math.isnan(first.value) and math.isnan(point.value))
        if same and point.signal.quantity not in MAIN_CHARTS:
            self._held[point.signal] = (first, point)
            return []
        self._curves.add(point.signal)
        return [first, point] if last.step == first.step else [first, last, point]
