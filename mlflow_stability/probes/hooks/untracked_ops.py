"""Runs our arithmetic in the middle of a forward pass without the training noticing it.

Guarantees: no gradient is recorded, autocast changes no type, and neither the script's modes (a default device,
selective checkpointing, a counter of operations) nor ours see it. Where Ctrl-C ends it on the way in or out,
`thread_state` undoes it.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter

from mlflow_stability.probes.hooks import thread_state, torch_api

_PLAIN = (Tensor, Parameter)
_DEVICES = ("cpu", "cuda")
_OPERATIONS = ("Python", "PythonTLSSnapshot")  # keys by which operations reach modes


class untracked:  # noqa: N801 # it is used as `contextlib.suppress` is
    """Context in which operations run outside autograd, autocast and modes."""

    __slots__ = ("_autocast", "_begun", "_functions", "_gradients", "_operations")

    def __init__(self) -> None:
        self._begun = False

    def __enter__(self) -> None:
        torch_api.need("set_dispatch_key_excluded")  # to be undone by it
        self._gradients = torch.is_grad_enabled()
        self._autocast = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
        keys = [getattr(torch_api.DispatchKey, name) for name in _OPERATIONS]
        self._operations = [key for key in keys if not torch_api.is_dispatch_key_excluded(key)]
        self._functions = torch_api.DisableTorchFunction()
        thread_state.remember(self)
        self._begun = True
        self._functions.__enter__()
        for key in self._operations:
            torch_api.set_dispatch_key_excluded(key, True)
        torch_api.set_grad_enabled(False)
        for device in self._autocast:
            torch.set_autocast_enabled(device, False)

    def __exit__(self, *_: object) -> None:
        self.undo()
        thread_state.forget(self)

    def undo(self) -> None:
        if not self._begun:
            return
        for device in self._autocast:
            torch.set_autocast_enabled(device, True)
        torch_api.set_grad_enabled(self._gradients)
        for key in self._operations:
            torch_api.set_dispatch_key_excluded(key, False)
        self._functions.__exit__(None, None, None)


def is_measurable(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a plain, non-empty tensor of numbers: not fake, sharded, sparse or transformed."""
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
