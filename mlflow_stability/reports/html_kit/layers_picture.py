"""Lay out one quantity by layer of two runs as two pictures beside each other, with one scale of colours.

Each picture is a PNG inside of the page with one pixel a cell, which a browser enlarges.
The format: https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.figures.layer_grid import labels_of
from mlflow_stability.reports import comparison_phrases as wording
from mlflow_stability.reports.html_kit.axis import Axis, Tick, apart
from mlflow_stability.vocabulary.measured.layer_comparison import LayerComparison

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS, _RGBA = 8, 6


def data_address(pixels: NDArray[np.uint8]) -> str:
    """Return ``data:image/png;base64,...`` of an array of rows, columns and four channels."""
    return f"data:image/png;base64,{base64.b64encode(png_of(pixels)).decode('ascii')}"


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    rows, columns, _ = pixels.shape
    unfiltered = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)
    head = struct.pack(">IIBBBBB", columns, rows, _EIGHT_BITS, _RGBA, 0, 0, 0)
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
ROW_HEIGHT, THIN_ROW_HEIGHT = 0.95, 0.5  # heights of a layer in rem, up to and beyond `MAX_HIGH_ROWS` layers
MAX_HIGH_ROWS = 24
MIN_HEIGHT, MAX_HEIGHT = 4.0, 30.0  # of a picture, in rem
LABEL_HEIGHT = 0.85
BAR_CHARACTERS = 24  # characters that fit beneath the bar of colours where it is narrowest
MAX_NAME_CHARACTERS = 26  # of longer names beside a row the end is kept


@dataclass(frozen=True, slots=True)
class LayerHeat:
    name: str
    address: str  # its picture, only the columns that have steps of the run
    left: float
    width: float  # percent of the width of the plane
    counted_from: str  # ``the onset, step 120``


@dataclass(frozen=True, slots=True)
class LayersPicture:
    title: str
    text: str  # a sentence about where they are farthest apart
    columns: str
    height: float  # in rem
    heats: tuple[LayerHeat, LayerHeat]
    rows: tuple[Tick, ...]  # names of layers, in percent from the top
    letters: int
    common: str  # the common beginning of all names, left out beside the rows
    steps: tuple[Tick, ...]
    zero: float | None  # percent from the left where the onset is; None where nothing was aligned
    bar: tuple[str, ...]  # the colours, from the lowest value to the highest
    values: tuple[Tick, ...]
    special: tuple[str, ...]  # which of ``not finite``, ``zero``, ``absent layer``, ... there are
    measure: str  # the quantity shown by colour: ``gradient norm``


def layers_picture_of(beside: LayerComparison, names: tuple[str, str]) -> LayersPicture:
    count = len(beside.layers)
    height = min(MAX_HEIGHT, max(MIN_HEIGHT, count * (ROW_HEIGHT if count <= MAX_HIGH_ROWS else THIN_ROW_HEIGHT)))
    common, labels = labels_of(beside.layers, max(1, int(height / LABEL_HEIGHT)))
    across = Axis(float(beside.begin), float(beside.begin + beside.columns * beside.width))
    low, high = beside.colour_limits
    special = [beside.without_colour(number) for number in (0, 1)]
    return LayersPicture(
        title=beside.title,
        text=wording.layer_difference(beside, names),
        columns=wording.layer_columns(beside),
        height=height,
        heats=(_heat(beside, 0, names[0]), _heat(beside, 1, names[1])),
        rows=tuple(Tick((label.middle + 0.5) / count * 100, _ending(label.name)) for label in labels),
        letters=max(len(_ending(label.name)) for label in labels),
        common=common.rstrip("."),
        steps=across.ticks(4),
        zero=across.place(0.0) if beside.aligned and across.low <= 0 <= across.high else None,
        bar=tuple("#{:02x}{:02x}{:02x}".format(*colour) for colour in _COLOURS.astype(int)),
        values=apart(Axis(low, high, beside.logarithmic).ticks(4), BAR_CHARACTERS),
        special=tuple(name for name in special[0] if special[0][name].any() or special[1][name].any()),
        measure=beside.measure,
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
    finite = np.isfinite(shares)
    points = np.linspace(0.0, 1.0, len(_COLOURS))
    for channel in range(3):
        pixels[finite, channel] = np.interp(shares[finite], points, _COLOURS[:, channel]).round().astype(np.uint8)
    pixels[finite, 3] = 255
    special = beside.without_colour(number)
    for name, colour in (("zero", ZERO), ("not finite", NOT_FINITE), (f"absent {beside.row}", ABSENT)):
        pixels[special[name]] = (*colour, 255)
    return pixels


def _ending(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARACTERS else f"…{name[1 - MAX_NAME_CHARACTERS :]}"
