"""Lays out what two runs have by layer as two pictures beside each other, with one scale of colours.

In: a `LayersBeside` and what to call the runs. Out: two images of one pixel a cell, names of rows, ticks and a bar of
colours in percent. Promised: what is not finite, zero, or not measured is told apart from every value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.figures.layer_label import labels_of
from mlflow_stability.reports import layers_wording as wording
from mlflow_stability.reports.plane import Axis
from mlflow_stability.reports.png_image import data_address
from mlflow_stability.reports.ticks import Tick
from mlflow_stability.vocabulary.layers_beside import Cells, LayersBeside

# Points of matplotlib's viridis (CC0), dark to light: read by people who do not see colours, and on paper.
_COLOURS = np.array(
    [
        (68, 1, 84),
        (72, 40, 120),
        (62, 73, 137),
        (49, 104, 142),
        (38, 130, 142),
        (31, 158, 137),
        (53, 183, 121),
        (110, 206, 88),
        (181, 222, 43),
        (253, 231, 37),
    ],
    np.float64,
)
NOT_FINITE, ZERO = (213, 94, 0), (160, 160, 160)
ROW, THIN_ROW, FEW = 0.95, 0.5, 24
"""The height of a layer, in the letters of the page, where there are few and where there are many."""
LOWEST, HIGHEST = 4.0, 30.0
LABEL = 0.85
LONGEST = 26
"""Characters of a name beside a row; of longer ones the end is kept."""


@dataclass(frozen=True, slots=True)
class LayersPicture:
    """Both runs."""

    title: str
    said: str
    """Where they are farthest apart."""
    columns: str
    height: float
    """In the letters of the page."""
    images: tuple[tuple[str, str], tuple[str, str]]
    """For each run its name and its picture."""
    rows: tuple[Tick, ...]
    """Names of layers, in percent from the top."""
    letters: int
    """How many the longest of these names has."""
    common: str
    """What all names begin with, and which is left out beside the rows."""
    steps: tuple[Tick, ...]
    zero: float | None
    """Percent from the left where the onset is; None where nothing was aligned."""
    bar: tuple[str, ...]
    """The colours, from the lowest value to the highest."""
    values: tuple[Tick, ...]
    """Beside the bar."""
    special: tuple[str, ...]
    """Which of ``not finite``, ``zero``, ``not measured`` are to be seen."""


def layers_picture_of(beside: LayersBeside, names: tuple[str, str]) -> LayersPicture:
    """The picture of one quantity."""
    count = len(beside.layers)
    height = min(HIGHEST, max(LOWEST, count * (ROW if count <= FEW else THIN_ROW)))
    common, labels = labels_of(beside.layers, max(1, int(height / LABEL)))
    across = Axis(float(beside.begin), float(beside.begin + beside.columns * beside.width))
    low, high = beside.colour_limits
    return LayersPicture(
        title=wording.title(beside),
        said=wording.sentences(beside, names),
        columns=wording.columns(beside),
        height=height,
        images=(
            (names[0], data_address(_pixels(beside, beside.first))),
            (names[1], data_address(_pixels(beside, beside.second))),
        ),
        rows=tuple(Tick((each.middle + 0.5) / count * 100, _ending(each.name)) for each in labels),
        letters=max(len(_ending(each.name)) for each in labels),
        common=common.rstrip("."),
        steps=across.ticks(4),
        zero=across.place(0.0) if beside.aligned and across.low <= 0 <= across.high else None,
        bar=tuple("#{:02x}{:02x}{:02x}".format(*each) for each in _COLOURS.astype(int)),
        values=Axis(low, high, beside.logarithmic).ticks(4),
        special=tuple(_special(beside)),
    )


def _pixels(beside: LayersBeside, cells: Cells) -> NDArray[np.uint8]:
    pixels = np.zeros((*cells.shape, 4), np.uint8)
    shares = beside.shares(cells)
    known = np.isfinite(shares)
    points = np.linspace(0.0, 1.0, len(_COLOURS))
    for channel in range(3):
        pixels[known, channel] = np.interp(shares[known], points, _COLOURS[:, channel]).round().astype(np.uint8)
    pixels[known, 3] = 255
    if not beside.smallest:
        pixels[cells == 0] = (*ZERO, 255)
    pixels[np.isinf(cells)] = (*NOT_FINITE, 255)
    return pixels


def _special(beside: LayersBeside) -> list[str]:
    cells = np.concatenate([beside.first.ravel(), beside.second.ravel()])
    seen = {
        "not finite": np.isinf(cells).any(),
        "zero": not beside.smallest and (cells == 0).any(),
        "not measured": np.isnan(cells).any(),
    }
    return [name for name, there in seen.items() if there]


def _ending(name: str) -> str:
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
