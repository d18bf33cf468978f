"""The gradients of parameters, as far as their values lie side by side in this process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def dense_gradients(parameters: Sequence[Tensor]) -> tuple[list[Tensor | None], tuple[int, ...]]:
    """For each parameter its gradient or None; and which are None because they are sparse or split over processes.

    What of a sparse gradient belongs together is known to the device alone, and asking it would mean to wait.
    """
    gradients: list[Tensor | None] = [each.grad for each in parameters]
    unknown = tuple(
        [
            place
            for place, each in enumerate(gradients)
            if each is not None and (each.layout is not torch.strided or hasattr(each, "full_tensor"))
        ]
    )
    for place in unknown:
        gradients[place] = None
    return gradients, unknown
