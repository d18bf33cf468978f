"""Lets PyPI's torchvision be imported beside a torch without CUDA.

Its compiled part is built for a torch with CUDA and does not load beside one without; its Python part then fails at
import, for it asks for operators of the compiled one. Where torchvision was built for the CPU, none of this is needed.
"""

from __future__ import annotations

import torch

DECLARED: list[torch.library.Library] = []
"""Operators go away with their library."""


def declare_operators() -> None:
    """Let torch know the names of the two that the import asks for. No training of the table calls them."""
    if torch.version.cuda is None and not DECLARED:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        DECLARED.append(library)
