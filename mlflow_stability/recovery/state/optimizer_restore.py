"""Restore the state of an optimizer: compare, make what is missing, fill in place.

Guarantees: the first two steps change nothing, and the third can be undone; existing tensors are filled in place
without changing their autograd versions; new state is removed, missing state is made where torch would make it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import local_part
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.model_discovery import state_of
from mlflow_stability.recovery.skipping.step_undo import PutBack, copy_bookkeeping
from mlflow_stability.recovery.state.state_copy import OptimizerCopy
from mlflow_stability.recovery.state.value_tree import copy_for_training

LEARNED = ("d", "d_denom", "d_max", "d_numerator", "k", "lr_max", "scheduled_lr", "train_mode", "weight_sum")
"""Learned values that optimizers keep among the hyper-parameters: D-Adaptation, Prodigy and schedule-free ones."""


class OptimizerPlan:
    def __init__(self, copy: OptimizerCopy, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []  # existing tensors, and what they are filled from
        self._copy = copy
        self._optimizer = optimizer
        self._parameters = {
            names[id(parameter)]: (parameter, group)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self.mismatch = self._compare()
        self._used: set[int] = set()
        self._entries: dict[Tensor, Any] = {}
        self._shared: dict[str, Any] = {}
        self._values: list[tuple[dict[str, Any], str, Any]] = []
        self._put_back: PutBack = lambda: None

    def _compare(self) -> str:
        """Return the difference to the copy; empty without one."""
        copy, kind = self._copy, type(self._optimizer).__name__
        if copy.kind != kind:
            return f"was of type {copy.kind}"
        for members in copy.members:
            for name in members:
                if name not in self._parameters:
                    return f"had the parameter {name}, which this one lacks"
        return ""

    def stage(self, groups: Sequence[Mapping[str, Any]], everything: bool) -> None:
        """Make everything that needs memory, without changing anything.

        Of the saved hyper-parameters `groups` all are restored with `everything`, else only learned and broken ones.
        """
        copy, state = self._copy, state_of(self._optimizer)
        self._put_back = copy_bookkeeping(self._optimizer)
        for name, (parameter, group) in self._parameters.items():
            saved = copy.state.get(name)
            if saved is None:
                continue
            place = _Place(parameter, group, copy.on_host.get(name))
            self._entries[parameter] = self._entry(state.get(parameter), saved, place)
        self._shared = {key: copy_for_training(saved) for key, saved in copy.shared.items()}
        for group, values in zip(self._optimizer.param_groups, groups, strict=False):
            for key, value in values.items():
                live = group.get(key)
                if not (everything or key in LEARNED or (isinstance(live, float) and not math.isfinite(live))):
                    continue
                if isinstance(live, Tensor) and isinstance(value, Tensor) and live.shape == value.shape:
                    self.pairs.append((live, value.to(live.dtype)))
                else:
                    self._values.append((group, key, copy_for_training(value)))

    def apply(self) -> None:
        """Put the new state in place; the caller fills `pairs`."""
        state = state_of(self._optimizer)
        for parameter, _ in self._parameters.values():
            if parameter not in self._entries:
                state.pop(parameter, None)
                continue
            live, entry = state.get(parameter), self._entries[parameter]
            if isinstance(live, dict) and isinstance(entry, dict):
                live.clear()
                live.update(entry)
            else:
                state[parameter] = entry
        for key in [key for key in state if isinstance(key, str) and key not in self._shared]:
            del state[key]
        state.update(self._shared)
        for group, key, value in self._values:
            group[key] = value

    def undo(self) -> None:
        """Restore the state at `stage`, except the content of `pairs`."""
        self._put_back()

    def _entry(self, live: Any, saved: Any, place: _Place) -> Any:
        """Return the state of a parameter: existing tensors where they fit, else new ones."""
        if not isinstance(saved, dict):
            return place.made("", saved)
        entry: dict[Any, Any] = {}
        for key, value in saved.items():
            existing = live.get(key) if isinstance(live, dict) else None
            if isinstance(value, Tensor) and isinstance(existing, Tensor) and self._fits(existing, value):
                self.pairs.append((local_part(existing), value))
                entry[key] = existing
            else:
                entry[key] = place.made(key, value)
        return entry

    def _fits(self, existing: Tensor, saved: Tensor) -> bool:
        """Whether it can be filled in place: two entries of one memory would overwrite each other."""
        existing = local_part(existing)
        if existing.shape != saved.shape or existing.dtype is not saved.dtype or existing.layout is not saved.layout:
            return False
        if existing.layout is not torch.strided or not existing.numel():
            return True
        memory = existing.data_ptr()
        fits = memory not in self._used
        self._used.add(memory)
        return fits


class _Place:
    """Where new state of a parameter belongs."""

    def __init__(self, parameter: Tensor, group: Mapping[str, Any], on_host: Sequence[str] | None) -> None:
        self._parameter = parameter
        self._device = parameter.device
        self._capturable = bool(group.get("capturable") or group.get("fused"))
        self._on_host = on_host

    def made(self, key: str, value: Any) -> Any:
        """Return a copy of the value there."""
        device = self._of(key)
        return copy_for_training(
            value, lambda tensor: self._split(torch.empty_like(tensor, device=device).copy_(tensor))
        )

    def _split(self, shard: Tensor) -> Any:
        parameter: Any = self._parameter.data
        local = local_part(parameter)
        if local is parameter or local.shape != shard.shape:
            return shard
        shape, stride = parameter.shape, parameter.stride()
        return type(parameter).from_local(
            shard, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=stride
        )

    def _of(self, key: str) -> torch.device:
        host = torch.device("cpu")
        if self._on_host is not None:  # saved on a device: keep its placement
            return host if key in self._on_host else self._device
        return host if key == "step" and not self._capturable else self._device


def fill(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Fill the first of each pair from the second; both have one shape and type."""
    targets, sources = [], []
    for target, source in pairs:
        if target.layout is not torch.strided:
            # `.data` of a sparse tensor is another one: what it points to is changed in the tensor itself.
            with torch_api.unsafe_preserve_version_counter(target), torch.no_grad():
                if target._nnz() != source._nnz() and target.layout is not torch.sparse_coo:
                    target.resize_as_sparse_(source)
                target.copy_(source)
            continue
        target = target.data
        for dimension, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
            if stride == 0 and size > 1:  # expanded: its elements share memory
                target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
        targets.append(target)
        sources.append(source)
    if targets:
        torch_api.foreach_copy_(targets, sources, non_blocking=False)
