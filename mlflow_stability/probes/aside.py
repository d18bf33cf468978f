"""Computes beside a training, in the middle of its forward pass, without it noticing.

In: a block of our own arithmetic. Out: nothing. Promised: no gradient is recorded, autocast changes no type, and
neither the script's modes (a default device, selective checkpointing, a counter of operations) nor ours see it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter

_PLAIN = (Tensor, Parameter)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Inside, operations are nobody's business but ours."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._C._DisableTorchDispatch())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def is_measurable(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a plain tensor of numbers: no fake, sharded, sparse or transformed one, and not empty."""
    return (
        type(value) in _PLAIN
        and isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type != "meta"
        and value.numel() > 0
        and not value.is_complex()
        and not value.is_quantized
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )
