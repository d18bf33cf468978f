"""Lay out the pictures of a comparison: losses, strips of trouble, survival curves, and final losses over parameters.

Places are percent of the width or height; paths are in the units of the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.reports.html_kit.axis import HEIGHT, WIDTH, Axis, Tick, axis_of
from mlflow_stability.vocabulary.result import ParamPlot, RunCard, SurvivalCurve

MAX_LINES = 24  # losses in one picture: those of the most stable and of the least stable runs, half of each
HEADROOM_SPANS = 2.0  # how far a logarithmic scale may go above all sound losses, in multiples of their span
MIN_HEADROOM_RATIO = 100.0  # the scale goes at least up to this many times the highest sound loss
MAX_STABLEST_STRIPS, MAX_UNSTABLE_STRIPS = 10, 30
MIN_BAR_PERCENT = 0.5  # percent of the width that a bar takes at least
MAX_BANDS = 2  # more confidence bands than this hide each other
DOTS_MARGIN = 4.0  # percent that stay free at each edge, so that no dot is cut
LETTERS = 32  # letters that fit beneath a picture of dots
MIN_LETTERS = 5  # where a word would have fewer, every second, third, ... word is left out
MAX_SPREAD_VALUES = 12  # dots of at most this many different values are spread, so that none hides another
_GOLDEN = 0.6180339887

_Curve = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    kind: str  # the run's state, ``lost`` or ``stable``; of two runs ``one`` and ``other``
    path: str


@dataclass(frozen=True, slots=True)
class Overlay:
    """The losses of several runs, aligned at the onset of their trouble."""

    lines: tuple[Line, ...]
    zero: float | None  # percent from the left where the onset is; None where nothing was aligned
    steps: tuple[Tick, ...]
    values: tuple[Tick, ...]
    left_out: int = 0
    logarithmic: bool = False
    borrowed: bool = False  # whether runs without trouble are aligned by the onsets of others
    cut: bool = False  # whether some losses are higher than the picture shows


def overlay_of(cards: Sequence[RunCard]) -> Overlay | None:
    """Lay out the losses of runs in order of stability; None for fewer than two curves.

    Runs without trouble are aligned at the median onset of the others; where none had any, all begin at step 0.
    """
    drawable = [card for card in cards if card.sketch is not None and np.isfinite(card.sketch.low).any()]
    if len(drawable) < 2:
        return None
    shown = drawable
    if len(drawable) > MAX_LINES:
        shown = [*drawable[: MAX_LINES // 2], *drawable[-(MAX_LINES // 2) :]]
    onsets = [card.onset for card in shown if card.onset is not None]
    median_onset = float(np.median(onsets)) if onsets else 0.0
    curves = [_shifted(card, median_onset) for card in shown]
    across = Axis(min(float(steps.min()) for steps, _ in curves), max(float(steps.max()) for steps, _ in curves))
    upward, cut = _loss_axis(shown, curves)
    kinds = ["one", "other"] if len(shown) == 2 else [card.state for card in shown]
    lines = tuple(
        Line(card.name or card.source, kind, _path(steps, values, across, upward))
        for card, kind, (steps, values) in zip(shown, kinds, curves, strict=True)
    )
    return Overlay(
        lines,
        across.place(0.0) if onsets else None,
        across.ticks(),
        tuple(Tick(100 - tick.at, tick.label) for tick in upward.ticks()),
        len(drawable) - len(shown),
        upward.logarithmic,
        0 < len(onsets) < len(shown),
        cut,
    )


def _path(steps: NDArray[np.float64], values: NDArray[np.float64], across: Axis, upward: Axis) -> str:
    """An SVG path with gaps at values that are not finite; values beyond the picture are on its edge."""
    inside = np.isfinite(values) & (steps >= across.low) & (steps <= across.high)
    x, y = across.places(steps) * WIDTH / 100, (100 - upward.places(values)) * HEIGHT / 100
    parts, drawing = [], False
    for is_inside, left, down in zip(inside.tolist(), x.tolist(), y.tolist(), strict=True):
        if is_inside:
            parts.append(f"{'L' if drawing else 'M'}{left:.1f} {down:.1f}")
        drawing = is_inside
    return "".join(parts)


def _shifted(card: RunCard, median_onset: float) -> _Curve:
    """Steps from the onset, and values: the lowest and the highest of each stretch in turn."""
    assert card.sketch is not None
    onset = median_onset if card.onset is None else float(card.onset)
    steps = np.repeat(np.asarray(card.sketch.steps, np.float64), 2) - onset
    values = np.stack([np.asarray(card.sketch.low), np.asarray(card.sketch.high)], axis=1).reshape(-1)
    return steps, values


def _loss_axis(cards: Sequence[RunCard], curves: Sequence[_Curve]) -> tuple[Axis, bool]:
    """The scale, and whether it ends below the highest loss: one that explodes leaves the others some room."""
    axis = axis_of(_without_far_ends(np.concatenate([values for _, values in curves])))
    if not axis.logarithmic:
        return axis, False
    sound = np.concatenate([_sound(card, *curve) for card, curve in zip(cards, curves, strict=True)])
    sound = sound[np.isfinite(sound) & (sound > 0)]  # a zero has no place on this scale
    if not len(sound):
        return axis, False
    low, high = float(sound.min()), float(sound.max())
    with np.errstate(over="ignore"):
        top = float(np.float64(high) * max(MIN_HEADROOM_RATIO, np.float64(high / low) ** HEADROOM_SPANS))
    return (Axis(axis.low, top, logarithmic=True), True) if axis.high > top else (axis, False)


def _sound(card: RunCard, steps: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Losses before the trouble, without the stretch of its beginning."""
    if card.onset is None:
        return values
    before = values[steps <= 0]
    return before[:-2] if len(before) > 2 else before[:1]


def _without_far_ends(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values that the scale must show: not the last hundredth where that is far from all others."""
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.min() > 0:
        return finite  # a logarithmic scale has room for all
    low, high = np.percentile(finite, [1, 99])
    far = float(np.ptp(finite)) > 5 * float(high - low) > 0
    return finite[(finite >= low) & (finite <= high)] if far else finite


@dataclass(frozen=True, slots=True)
class Bar:
    left: float
    width: float
    severity: str
    text: str


@dataclass(frozen=True, slots=True)
class Strip:
    """The steps of one run, and when it had trouble."""

    name: str
    kind: str
    left: float
    width: float
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Strips:
    strips: tuple[Strip, ...]
    steps: tuple[Tick, ...]
    left_out: int = 0


def strips_of(cards: Sequence[RunCard]) -> Strips | None:
    """Lay out the strips of runs in order of stability; None where no run has steps."""
    with_steps = [card for card in cards if card.first_step is not None and card.last_step is not None]
    if not with_steps:
        return None
    shown = with_steps
    if len(with_steps) > MAX_STABLEST_STRIPS + MAX_UNSTABLE_STRIPS:
        shown = [*with_steps[:MAX_STABLEST_STRIPS], *with_steps[-MAX_UNSTABLE_STRIPS:]]
    first, last = min(card.first_step or 0 for card in shown), max(card.last_step or 0 for card in shown)
    across = Axis(float(first), float(last))
    return Strips(tuple(_strip(card, across) for card in shown), across.ticks(), len(with_steps) - len(shown))


def _strip(card: RunCard, across: Axis) -> Strip:
    left, right = across.places([float(card.first_step or 0), float(card.last_step or 0)]).tolist()
    bars = []
    for mark in sorted(card.troubles, key=lambda mark: mark.severity):
        begin, end = across.places([float(mark.start), float(max(mark.start, mark.end))]).tolist()
        width = max(MIN_BAR_PERCENT, end - begin)
        where = f"step {mark.start:,}" if mark.end <= mark.start else f"steps {mark.start:,} to {mark.end:,}"
        bars.append(Bar(min(begin, 100 - width), width, mark.severity.name.lower(), f"{mark.kind}, {where}"))
    return Strip(card.name or card.source, card.state, left, max(MIN_BAR_PERCENT, right - left), tuple(bars))


@dataclass(frozen=True, slots=True)
class StepCurve:
    label: str
    number: int
    path: str
    band: str  # path around its confidence band; empty for none


@dataclass(frozen=True, slots=True)
class SurvivalPicture:
    curves: tuple[StepCurve, ...]
    steps: tuple[Tick, ...]
    shares: tuple[Tick, ...]


def survival_picture_of(curves: Sequence[SurvivalCurve]) -> SurvivalPicture | None:
    """Lay out the curves of groups, or that of all runs where there are no groups; None where no run was lost."""
    if not curves or not any(curve.lost for curve in curves):
        return None
    shown = curves[1:] or curves
    across = Axis(0.0, float(max(curve.last_step for curve in curves)))
    stairs = tuple(
        _stairs(curve, number, across, banded=len(shown) <= MAX_BANDS) for number, curve in enumerate(shown, start=1)
    )
    return SurvivalPicture(
        stairs, across.ticks(), tuple(Tick(100.0 - share, f"{share} %") for share in (0, 25, 50, 75, 100))
    )


def _stairs(curve: SurvivalCurve, number: int, across: Axis, *, banded: bool) -> StepCurve:
    edges = across.places([0.0, *map(float, curve.steps), float(curve.last_step)]) * WIDTH / 100

    def corners(shares: Sequence[float]) -> list[str]:
        return [
            f"{edges[place + right]:.1f} {(1 - share) * HEIGHT:.1f}"
            for place, share in enumerate([1.0, *shares])
            for right in (0, 1)
        ]

    band = ""
    if curve.low and banded:
        band = f"M{'L'.join([*corners(curve.high), *reversed(corners(curve.low))])}Z"
    return StepCurve(curve.label, number, f"M{'L'.join(corners(curve.shares))}", band)


@dataclass(frozen=True, slots=True)
class Dot:
    left: float
    top: float
    unstable: bool


@dataclass(frozen=True, slots=True)
class DotPlot:
    """The final loss of each run over one parameter; lost runs are at the upper edge."""

    param: str
    named: bool  # whether the parameter is associated with instability
    dots: tuple[Dot, ...]
    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]
    logarithmic: bool  # of the axis across


def dots_of(plot: ParamPlot) -> DotPlot:
    across = Axis(0.0, max(1.0, len(plot.labels) - 1.0)) if plot.labels else axis_of(plot.values)
    losses = [math.inf if loss is None or not math.isfinite(loss) else loss for loss in plot.losses]
    finite = [loss for loss in losses if math.isfinite(loss)]
    stable = [loss for loss, bad in zip(losses, plot.unstable, strict=True) if math.isfinite(loss) and not bad]
    scaled = stable or finite
    upward = axis_of([*scaled, 1.25 * max(scaled)] if scaled and max(scaled) > 0 else scaled)
    spread = len(np.unique(np.asarray(plot.values))) <= MAX_SPREAD_VALUES
    dots = []
    for place, (value, loss, unstable) in enumerate(zip(plot.values, losses, plot.unstable, strict=True)):
        if math.isnan(value):
            continue
        left = across.place(value) + (((place * _GOLDEN) % 1 - 0.5) * 6 if spread else 0.0)
        height = upward.place(loss) if math.isfinite(loss) else 100.0
        dots.append(Dot(_inside(left), 100 - _inside(height), unstable))
    if plot.labels:
        ticks = tuple(_word_ticks(plot.labels, across))
    else:
        ticks = tuple(Tick(_inside(tick.at), tick.label) for tick in across.ticks(3))
    heights = tuple(Tick(100 - _inside(tick.at), tick.label) for tick in upward.ticks(3))
    return DotPlot(plot.param, plot.named, tuple(dots), ticks, heights, across.logarithmic)


def _word_ticks(labels: Sequence[str], across: Axis) -> Iterator[Tick]:
    """As many words as there is room for, each cut to its share of the room."""

    def letters(every: int) -> int:
        return LETTERS // len(range(0, len(labels), every)) - 1

    every = next((gap for gap in range(1, len(labels)) if letters(gap) >= MIN_LETTERS), len(labels))
    room = max(MIN_LETTERS, letters(every))
    for place in range(0, len(labels), every):
        label = labels[place]
        yield Tick(_inside(across.place(place)), label if len(label) <= room else f"{label[: room - 1]}…")


def _inside(at: float) -> float:
    return DOTS_MARGIN + min(100.0, max(0.0, at)) * (100 - 2 * DOTS_MARGIN) / 100
