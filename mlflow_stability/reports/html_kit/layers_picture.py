"""Lays out what two runs have by layer as two pictures beside each other, with one scale of colours.

In: a `LayerComparison` and what to call the runs. Out: two images of one pixel a cell, names of rows, ticks and a bar
of colours in percent. Guarantees: what is not finite, zero, or not measured is told apart from every value, and so are
layers that only one of the two has and steps that only one of them made.

Writes a small picture as PNG inside of a page, one pixel for each cell, so that a browser makes the cells large.

In: pixels of red, green, blue and opacity. Out: an address that holds the picture itself.
The format: https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.figures.layers import labels_of
from mlflow_stability.reports.html_kit.axis import Axis, Tick, apart
from mlflow_stability.reports.words import layer_phrases as wording
from mlflow_stability.vocabulary.measured import LayerComparison

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS, _WITH_OPACITY = 8, 6


def data_address(pixels: NDArray[np.uint8]) -> str:
    """``data:image/png;base64,...`` of an array of rows, columns and four channels."""
    return f"data:image/png;base64,{base64.b64encode(png_of(pixels)).decode('ascii')}"


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    """The file."""
    rows, columns, _ = pixels.shape
    unfiltered = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    head = struct.pack(">IIBBBBB", columns, rows, _EIGHT_BITS, _WITH_OPACITY, 0, 0, 0)
    body = zlib.compress(unfiltered.tobytes(), 9)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


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
NOT_FINITE, ZERO, ABSENT = (213, 94, 0), (160, 160, 160), (205, 184, 150)
ROW, THIN_ROW, FEW = 0.95, 0.5, 24
"""The height of a layer, in the letters of the page, where there are few and where there are many."""
LOWEST, HIGHEST = 4.0, 30.0
BAR = 24
"""Characters that fit beneath the bar of colours, where it is narrowest."""
LABEL = 0.85
LONGEST = 26
"""Characters of a name beside a row; of longer ones the end is kept."""


@dataclass(frozen=True, slots=True)
class LayerHeat:
    """One run."""

    name: str
    address: str
    """Its picture, of the columns that it has steps in."""
    left: float
    width: float
    """Percent of the width of the plane."""
    counted_from: str
    """``the onset, step 120``."""


@dataclass(frozen=True, slots=True)
class LayersPicture:
    """Both runs."""

    title: str
    said: str
    """Where they are farthest apart."""
    columns: str
    height: float
    """In the letters of the page."""
    heats: tuple[LayerHeat, LayerHeat]
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
    """Which of ``not finite``, ``zero``, ``absent layer``, ... are to be seen."""
    measure: str
    """What the colours stand for: ``gradient norm``."""


def layers_picture_of(beside: LayerComparison, names: tuple[str, str]) -> LayersPicture:
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
        heats=(_heat(beside, 0, names[0]), _heat(beside, 1, names[1])),
        rows=tuple(Tick((each.middle + 0.5) / count * 100, _ending(each.name)) for each in labels),
        letters=max(len(_ending(each.name)) for each in labels),
        common=common.rstrip("."),
        steps=across.ticks(4),
        zero=across.place(0.0) if beside.aligned and across.low <= 0 <= across.high else None,
        bar=tuple("#{:02x}{:02x}{:02x}".format(*each) for each in _COLOURS.astype(int)),
        values=apart(Axis(low, high, beside.logarithmic).ticks(4), BAR),
        special=tuple(_special(beside)),
        measure=wording.measure(beside),
    )


def _heat(beside: LayerComparison, number: int, name: str) -> LayerHeat:
    begin, end = beside.columns_of[number]
    address = data_address(_pixels(beside, number)[:, begin:end]) if end > begin else ""
    percent = 100 / beside.columns
    return LayerHeat(name, address, begin * percent, (end - begin) * percent, beside.onset_in_words[number])


def _pixels(beside: LayerComparison, number: int) -> NDArray[np.uint8]:
    cells = (beside.first, beside.second)[number]
    pixels = np.zeros((*cells.shape, 4), np.uint8)
    shares = beside.shares(cells)
    known = np.isfinite(shares)
    points = np.linspace(0.0, 1.0, len(_COLOURS))
    for channel in range(3):
        pixels[known, channel] = np.interp(shares[known], points, _COLOURS[:, channel]).round().astype(np.uint8)
    pixels[known, 3] = 255
    special = beside.without_colour(number)
    for what, colour in (("zero", ZERO), ("not finite", NOT_FINITE), (f"absent {beside.row}", ABSENT)):
        pixels[special[what]] = (*colour, 255)
    return pixels


def _special(beside: LayerComparison) -> list[str]:
    one, other = (beside.without_colour(number) for number in (0, 1))
    return [name for name in one if one[name].any() or other[name].any()]


def _ending(name: str) -> str:
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"
