"""Where the pictures of a run are among its artifacts.

In: which picture, and which recording of its run it shows. Out: a folder and a file name. Promised: the pictures of a
second training in the same run do not replace those of the first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

PictureName: TypeAlias = Literal["dashboard", "grad_norm", "update_ratio", "param_norm", "gradient_histogram"]
LAYERS_FOLDER = "stability/layers"
_FOLDERS: dict[PictureName, str] = {"dashboard": "stability"}


def picture_place(name: PictureName, recording: int) -> tuple[str, str]:
    """The folder and the file of a picture: `stability`, `dashboard.png`; of a second recording `dashboard-2.png`."""
    return _FOLDERS.get(name, LAYERS_FOLDER), f"{name}.png" if recording == 0 else f"{name}-{recording + 1}.png"
