"""Copies an optimizer before a step, so that the step can be taken back.

In: an optimizer at its gate. Out: the same optimizer, as if the step had not been. Two sizes: the bookkeeping alone,
for a step that finds no gradients and leaves tensors alone, and everything, for LBFGS, which walks the weights about
within one step. Promised: tensors that were there are filled in place, at their addresses and without counting up
their autograd versions; state that was born meanwhile is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

PutBack = Callable[[], None]


def copy_bookkeeping(optimizer: Optimizer) -> PutBack:
    """Remember which state there is, and every number that is not a tensor: counters of groups and parameters."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    kept: dict[Any, Any] = optimizer.state
    states = {key: (entry, dict(entry) if isinstance(entry, dict) else None) for key, entry in kept.items()}

    def put_back() -> None:
        for group, before in zip(optimizer.param_groups, groups, strict=False):
            _be_again(group, before, keep="params")
        state: dict[Any, Any] = optimizer.state
        for key in [each for each in state if each not in states]:
            del state[key]
        for key, (entry, content) in states.items():
            if content is not None:
                _be_again(entry, content)
            if state.get(key) is not entry:
                state[key] = entry

    return put_back


def copy_everything(optimizer: Optimizer) -> PutBack:
    """Remember weights and state, tensors included: as much memory again as the optimizer's state."""
    put_bookkeeping_back = copy_bookkeeping(optimizer)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    with torch.no_grad():
        undo = [_undo_of(each) for each in (*parameters, *optimizer.state.values())]

    def put_back() -> None:
        put_bookkeeping_back()
        with torch.no_grad():
            for each in undo:
                each()

    return put_back


def _be_again(now: dict[str, Any], before: dict[str, Any], keep: str = "") -> None:
    for key in [key for key in now if key not in before and key != keep]:
        del now[key]
    now.update(before)


def _undo_of(value: Any) -> PutBack:
    """What makes a tensor, or everything in a list or dictionary, what it is now."""
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        return lambda: _fill(value, copy)
    if not isinstance(value, dict | list):
        return lambda: None
    entries = value.copy()
    inner = [_undo_of(each) for each in (value.values() if isinstance(value, dict) else value)]

    def undo() -> None:
        value.clear()
        if isinstance(value, dict):
            value.update(entries)
        else:
            value.extend(entries)
        for each in inner:
            each()

    return undo


def _fill(tensor: Tensor, copy: Tensor) -> None:
    tensor.data.copy_(copy)
