from __future__ import annotations

import struct

from mlflow_stability.figures.style import new_figure


def test_a_picture_shows_itself_in_a_notebook_at_half_its_resolution() -> None:
    data, size = new_figure(2.0)._repr_png_()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1500, 300)
    assert size == {"width": 900, "height": 180}
