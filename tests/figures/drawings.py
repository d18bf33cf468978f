"""Helpers that read pictures: their texts, the places of these, and their pixels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from mlflow_stability.figures.curve import Curve, curve_of_values
from mlflow_stability.figures.style import our_style
from mlflow_stability.vocabulary.measured.signal import Signal


def curve(quantity: str, values: object, steps: object = None, attempts: object = None, place: str = "") -> Curve:
    """A curve of these values, by default of the steps from 1 on."""
    result = np.asarray(values, np.float64)
    where = np.arange(1, len(result) + 1) if steps is None else np.asarray(steps)
    tried = np.zeros(len(result), np.int64) if attempts is None else np.asarray(attempts)
    return curve_of_values(Signal(quantity, place), where.astype(np.int64), result, tried.astype(np.int64))


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """The picture; drawn where it has changed since it was drawn last."""
    if figure.stale:
        with our_style():
            figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]


def texts(figure: Figure) -> list[str]:
    """Everything that is written in it."""
    return [item.get_text() for item, _ in placed(figure)]


def placed(figure: Figure) -> list[tuple[Text, Bbox]]:
    """Every visible text with the rectangle that it takes."""
    pixels(figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    beyond = _beyond_their_axes(figure)
    drawn = [text for text in figure.findobj(Text) if text.get_visible() and id(text) not in beyond]
    return [(text, text.get_window_extent(renderer)) for text in drawn if text.get_text().strip()]


def cut_off(figure: Figure) -> list[str]:
    """The texts that do not lie wholly in the picture."""
    whole = figure.bbox
    return [
        text.get_text()
        for text, box in placed(figure)
        if box.x0 < whole.x0 - 1 or box.x1 > whole.x1 + 1 or box.y0 < whole.y0 - 1 or box.y1 > whole.y1 + 1
    ]


def overlapping_labels(figure: Figure) -> list[tuple[str, str]]:
    """Neighbouring labels of an axis that cover each other."""
    boxes = {id(text): box for text, box in placed(figure)}
    result = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [ticklabel for ticklabel in axis.get_ticklabels() if id(ticklabel) in boxes]
            labels.sort(key=lambda item: (boxes[id(item)].x0, boxes[id(item)].y0))
            if axis is axes.yaxis:
                labels.sort(key=lambda item: boxes[id(item)].y0)
            for first, other in pairwise(labels):
                if Bbox.intersection(boxes[id(first)], boxes[id(other)]) is not None:
                    result.append((first.get_text(), other.get_text()))
    return result


def _beyond_their_axes(figure: Figure) -> set[int]:
    """Matplotlib keeps labels of ticks that are outside of the limits, and does not draw them."""
    seen = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            room = (high - low) * 1e-9
            for tick in axis.get_major_ticks():
                if not low - room <= tick.get_loc() <= high + room:
                    seen |= {id(tick.label1), id(tick.label2)}
    return seen
