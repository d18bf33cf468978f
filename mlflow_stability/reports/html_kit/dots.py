"""Scatter plot of runs: a parameter on the x-axis, the final loss on the y-axis, the outcome as the marker.

In: a `ParamPlot`. Out: dots in percent, and the ticks. Lost runs are drawn at the upper edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mlflow_stability.reports.html_kit.axis import Axis, Tick, axis_of
from mlflow_stability.vocabulary.result import ParamPlot

MARGIN = 4.0
"""Percent that stay free at each edge, so that no dot is cut."""
LETTERS = 32
"""How many there is room for beneath a picture."""
FEWEST_LETTERS = 5
"""A word that would have fewer is left out, as every other one then is."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One run."""

    left: float
    top: float
    unstable: bool


@dataclass(frozen=True, slots=True)
class DotPlot:
    """The picture of one parameter."""

    param: str
    named: bool
    dots: tuple[Dot, ...]
    across: tuple[Tick, ...]
    upward: tuple[Tick, ...]
    logarithmic: bool
    """Of the axis across."""


def dots_of(plot: ParamPlot) -> DotPlot:
    """The picture."""
    across = Axis(0.0, max(1.0, len(plot.labels) - 1.0)) if plot.labels else axis_of(plot.values)
    ends = [math.inf if loss is None or not math.isfinite(loss) else loss for loss in plot.losses]
    calm = [loss for loss, unstable in zip(ends, plot.unstable, strict=True) if math.isfinite(loss) and not unstable]
    seen = calm or [loss for loss in ends if math.isfinite(loss)]
    upward = axis_of([*seen, 1.25 * max(seen)] if seen and max(seen) > 0 else seen)
    dots = tuple(
        Dot(_inside(_spread(plot, across, place)), 100 - _inside(_height(loss, upward)), unstable)
        for place, (loss, unstable) in enumerate(zip(ends, plot.unstable, strict=True))
        if not math.isnan(plot.values[place])
    )
    if plot.labels:
        ticks = tuple(_word_ticks(plot.labels, across))
    else:
        ticks = tuple(Tick(_inside(each.at), each.label) for each in across.ticks(3))
    heights = tuple(Tick(100 - _inside(each.at), each.label) for each in upward.ticks(3))
    return DotPlot(plot.param, plot.named, dots, ticks, heights, across.logarithmic)


def _word_ticks(labels: Sequence[str], across: Axis) -> Iterator[Tick]:
    """As many words as there is room for, and of each as much; those at the edges reach out by half of theirs."""
    every = next((gap for gap in range(1, len(labels)) if _room(labels, gap) >= FEWEST_LETTERS), len(labels))
    room = max(FEWEST_LETTERS, _room(labels, every))
    for place in range(0, len(labels), every):
        label = labels[place]
        short = label if len(label) <= room else f"{label[: room - 1]}…"
        yield Tick(_inside(across.place(place)), short)


def _room(labels: Sequence[str], every: int) -> int:
    return LETTERS // len(range(0, len(labels), every)) - 1


def _height(loss: float, upward: Axis) -> float:
    return upward.place(loss) if math.isfinite(loss) else 100.0


def _spread(plot: ParamPlot, across: Axis, place: int) -> float:
    """Where a run stands; those of few different values are spread a little, so that they do not hide each other."""
    at = across.place(plot.values[place])
    if len(np.unique(np.asarray(plot.values))) > 12:
        return at
    return at + ((place * 0.6180339887) % 1 - 0.5) * 6


def _inside(at: float) -> float:
    return MARGIN + min(100.0, max(0.0, at)) * (100 - 2 * MARGIN) / 100
