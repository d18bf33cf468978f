"""Pictures of many small cells, as PNG files sharp enough to print."""

from __future__ import annotations

from io import BytesIO

from mlflow_stability.figures.style import Picture, our_style

SHARP = 300
"""Dots per inch."""


def sharp_png(figure: Picture) -> bytes:
    """The picture as a PNG file of 300 dots per inch."""
    file = BytesIO()
    with our_style():
        figure.savefig(file, dpi=SHARP, format="png", pil_kwargs={"compress_level": 3})
    return file.getvalue()
