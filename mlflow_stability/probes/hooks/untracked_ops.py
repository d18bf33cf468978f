"""Computes beside a training, in the middle of its forward pass, without it noticing.

In: a block of our own arithmetic. Out: nothing. Guarantees: no gradient is recorded, autocast changes no type, and
neither the script's modes (a default device, selective checkpointing, a counter of operations) nor ours see it. Where
Ctrl-C ends it on the way in or out, whoever runs our code has it undone: `thread_state` knows of each.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter

from mlflow_stability.probes.hooks import thread_state, torch_api

_PLAIN = (Tensor, Parameter)
_DEVICES = ("cpu", "cuda")
_OPERATIONS = ("Python", "PythonTLSSnapshot")
"""What leads an operation to modes; torch passes by what is excluded."""


class untracked:  # noqa: N801 # it is used as `contextlib.suppress` is
    """Inside, operations are nobody's business but ours."""

    __slots__ = ("_autocast", "_begun", "_functions", "_gradients", "_operations")

    def __init__(self) -> None:
        self._begun = False

    def __enter__(self) -> None:
        torch_api.need("set_dispatch_key_excluded")  # to be undone by it
        self._gradients = torch.is_grad_enabled()
        self._autocast = [each for each in _DEVICES if torch.is_autocast_enabled(each)]
        keys = [getattr(torch_api.DispatchKey, each) for each in _OPERATIONS]
        self._operations = [each for each in keys if not torch_api.is_dispatch_key_excluded(each)]
        self._functions = torch_api.DisableTorchFunction()
        thread_state.remember(self)
        self._begun = True
        self._functions.__enter__()
        for each in self._operations:
            torch_api.set_dispatch_key_excluded(each, True)
        torch_api.set_grad_enabled(False)
        for device in self._autocast:
            torch.set_autocast_enabled(device, False)

    def __exit__(self, *_: object) -> None:
        self.undo()
        thread_state.forget(self)

    def undo(self) -> None:
        """Leave torch as it was before; once more does no harm."""
        if not self._begun:
            return
        for device in self._autocast:
            torch.set_autocast_enabled(device, True)
        torch_api.set_grad_enabled(self._gradients)
        for each in self._operations:
            torch_api.set_dispatch_key_excluded(each, False)
        self._functions.__exit__(None, None, None)


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
        and not torch_api.is_functorch_wrapped_tensor(value)
    )
