"""Writes a small picture as PNG inside of a page, one pixel for each cell, so that a browser makes the cells large.

In: pixels of red, green, blue and opacity. Out: an address that holds the picture itself.
The format: https://www.w3.org/TR/png-3/
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

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
