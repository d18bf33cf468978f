"""Measures many small tensors on the CPU as one: thousands of kernels for a few values each take longer than training.

In: tensors of one type on the CPU, a kernel for the rows of a matrix, a kernel for tensors as they are. Out: one row
with a number for each tensor, in their order. Promised: the numbers are, to the last bit, those of the tensors one by
one; what is copied for it never takes more than a few megabytes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CROWD = 64
"""From how many tensors on it pays to look for those of one shape, ..."""
SMALL = 2**11
"""... of up to how many values each: copying larger ones takes as long as their kernels."""
TOGETHER = 2**18
"""How many values are copied side by side at a time: they stay in a core's cache."""


def crowd_row(
    tensors: list[Tensor], of_rows: Callable[[Tensor], Tensor], of_each: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    """A number for each tensor."""
    if len(tensors) < CROWD:
        return of_each(tensors)
    shapes: dict[torch.Size, list[int]] = {}
    others: list[int] = []
    for place, each in enumerate(tensors):
        alike = 0 < each.numel() <= SMALL and each.is_contiguous()  # else they would be summed in another order
        (shapes.setdefault(each.shape, []) if alike else others).append(place)
    order: list[int] = []
    found: list[Tensor] = []
    for shape, places in shapes.items():
        if len(places) == 1:
            others += places
            continue
        most = TOGETHER // shape.numel()
        for begin in range(0, len(places), most):
            some = places[begin : begin + most]
            order += some
            found.append(of_rows(torch.stack([tensors[place] for place in some]).view(len(some), -1)))
    if others:
        order += others
        found.append(of_each([tensors[place] for place in others]))
    row = torch.cat(found)
    return torch.empty_like(row).index_copy_(0, torch.tensor(order, device=row.device), row)
