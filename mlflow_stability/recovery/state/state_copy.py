"""A copy of the whole state of a training: weights, buffers, optimizer state, schedules, averages, random numbers.

Guarantees: bit for bit; shares nothing with the training; draws no random numbers and does not wait for a device. A
loop changes scheduler, loss scaler and averages after an optimizer's step: `with_what_followed` completes a copy at the
next backward pass.
"""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import local_part, total_norm
from mlflow_stability.probes.model_discovery import state_of
from mlflow_stability.recovery.state.host_copy import FiniteCheck, HostCopies, bytes_of
from mlflow_stability.recovery.state.training_parts import TrainingParts, named_tensors
from mlflow_stability.recovery.state.value_tree import map_tensors


def rng_state() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's generators, on the CPU and on every device in use."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    if "numpy.random" in sys.modules:
        kind, key, position, has_gauss, cached = np.random.get_state(legacy=True)
        if kind == "MT19937":
            state["numpy"] = {
                "key": torch.from_numpy(np.asarray(key).astype(np.int64)),
                "position": int(position),
                "has_gauss": int(has_gauss),
                "cached": float(cached),
            }
    device = _accelerator()
    if device is not None:
        module = torch.get_device_module(device)
        state["devices"] = {"type": device.type, "states": [module.get_rng_state(*place) for place in _places(device)]}
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore the generators, except those of devices that are not here."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"])
    kept = state.get("numpy")
    if kept is not None:
        key = kept["key"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", key, kept["position"], kept["has_gauss"], kept["cached"]))
    devices = state.get("devices")
    if devices is None or not torch.accelerator.is_available():
        return
    here = torch.accelerator.current_accelerator()
    if here is not None and here.type == devices["type"]:
        module = torch.get_device_module(here)
        states: list[Tensor] = devices["states"]
        for kept_state, place in zip(states, _places(here), strict=False):
            module.set_rng_state(kept_state, *place)


def _accelerator() -> torch.device | None:
    """Return the accelerator that this process uses; an unused one is not initialised."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return None
    module = torch.get_device_module(device)
    in_use = getattr(module, "is_initialized", None)
    return device if hasattr(module, "get_rng_state") and (in_use is None or in_use()) else None


def _places(device: torch.device) -> list[tuple[int, ...]]:
    """Return device arguments for its module: Apple's takes none."""
    if device.type == "mps":
        return [()]
    return [(number,) for number in range(torch.get_device_module(device).device_count())]


def scaler_state(scaler: Any) -> dict[str, Any]:
    """Return the state of a loss scaler without waiting, unlike its own ``state_dict``."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    return {
        "scale": scaler._init_scale if scale is None else scale,
        "growth_tracker": scaler._init_growth_tracker if tracker is None else tracker,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }


def restore_scaler(scaler: Any, saved: Mapping[str, Any], settings: bool) -> None:
    """Restore the scale in place, as graphs may know its address; with `settings` also its growth settings."""
    tracker: Any = saved["growth_tracker"]
    if settings:
        scaler.set_growth_factor(saved["growth_factor"])
        scaler.set_backoff_factor(saved["backoff_factor"])
        scaler.set_growth_interval(saved["growth_interval"])
    elif scaler.get_growth_interval() != saved["growth_interval"]:
        tracker = 0  # one beyond another interval would never meet it, and the scale never grow again
    for live, initial, value in (
        (scaler._scale, "_init_scale", saved["scale"]),
        (scaler._growth_tracker, "_init_growth_tracker", tracker),
    ):
        if live is None:
            setattr(scaler, initial, value.item() if isinstance(value, Tensor) else value)
        elif isinstance(value, Tensor):
            live.data.copy_(value)
        else:
            live.data.fill_(value)


@dataclass(frozen=True, slots=True)
class OptimizerCopy:
    kind: str  # name of its type
    members: tuple[tuple[str, ...], ...]  # parameters of each group
    state: dict[str, Any]
    shared: dict[str, Any]  # state that belongs to no parameter
    on_host: dict[str, tuple[str, ...]]  # entries of parameters on a device that are on the host: step counters

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of the state with its path."""
        for name, entry in (*self.state.items(), *self.shared.items()):
            tensors: list[Tensor] = []
            map_tensors(entry, tensors.append)
            for position, tensor in enumerate(tensors):
                yield f"{name}#{position}", tensor

    def with_tensors(self, copy_of: Callable[[Tensor], Tensor]) -> OptimizerCopy:
        return dataclasses.replace(
            self, state=map_tensors(self.state, copy_of), shared=map_tensors(self.shared, copy_of)
        )


def optimizer_state(optimizer: Optimizer, names: Mapping[int, str]) -> OptimizerCopy:
    """Return the optimizer's live state; `names` by id of the parameters."""
    state: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    on_host: dict[str, tuple[str, ...]] = {}
    for key, entry in state_of(optimizer).items():
        if not isinstance(key, Tensor):
            if isinstance(key, str):
                shared[key] = entry
            continue
        name = names.get(id(key))
        if name is None:  # removed from its group: no step reads its state again
            continue
        state[name] = entry
        if not key.is_cpu and isinstance(entry, dict):
            on_host[name] = tuple(k for k, value in entry.items() if isinstance(value, Tensor) and value.is_cpu)
    return OptimizerCopy(
        kind=type(optimizer).__name__,
        members=tuple(tuple(names[id(parameter)] for parameter in group["params"]) for group in optimizer.param_groups),
        state=state,
        shared=shared,
        on_host=on_host,
    )


def groups_of(optimizer: Optimizer) -> tuple[dict[str, Any], ...]:
    return tuple({key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups)


@dataclass(frozen=True, slots=True)
class LaterState:
    """What a loop changes after an optimizer's step."""

    averaged: dict[str, Tensor]
    hyper_parameters: tuple[tuple[dict[str, Any], ...], ...]  # for each optimizer and parameter group
    schedulers: tuple[tuple[str, dict[str, Any]], ...]  # type and state of each
    scaler: dict[str, Any] | None


BLOWN_UP = 100.0  # times its norm at the saved state: no average and no earlier model grows by that within a rollback


@dataclass(frozen=True, slots=True)
class TwinNorm:
    """The norm of a copy of the model that is not part of the state."""

    twin: weakref.ref[Module]
    norm: Tensor

    @classmethod
    def of(cls, twin: Module) -> TwinNorm | None:
        """Return None for sharded weights."""
        weights = [weight.detach() for weight in Module.parameters(twin)]
        norm = None if any(local_part(weight) is not weight for weight in weights) else total_norm(weights)
        return None if norm is None else cls(weakref.ref(twin), norm)

    def lost(self) -> Module | None:
        """Return the twin where it was sound, and is not finite or far too large now. Zeros are the start of a sum."""
        twin, before = self.twin(), float(self.norm)
        now = None if twin is None or not 0.0 < before < math.inf else TwinNorm.of(twin)
        return twin if now is not None and not float(now.norm) <= BLOWN_UP * before else None


@dataclass(frozen=True, slots=True)
class StateCopy:
    step: int
    tensors: dict[str, Tensor]  # parameters and buffers by name
    caches: frozenset[str]  # non-persistent tables and masks, whose shape may change
    optimizers: tuple[OptimizerCopy, ...]
    later: LaterState
    rng: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    """States of the script's own objects by name; only in checkpoints."""
    nbytes: int = 0
    blocked: float = 0.0  # seconds for which the training waited
    checks: tuple[FiniteCheck, ...] = ()
    copies: tuple[HostCopies, ...] = ()
    twins: tuple[TwinNorm, ...] = ()  # only in memory

    def wait(self) -> None:
        for copies in self.copies:
            copies.wait()

    def not_finite(self) -> frozenset[str]:
        return frozenset().union(*(check.not_finite() for check in self.checks))

    def infinite_masks(self) -> frozenset[str]:
        return frozenset().union(*(check.infinite_masks() for check in self.checks))

    def seconds(self) -> float:
        """Return its cost: the training's waiting, or the device's time if that is more."""
        return max(self.blocked, sum(copies.device_seconds() for copies in self.copies))


def bytes_of_state(parts: TrainingParts) -> int:
    """Return the size of a copy before it is made."""
    tensors = [named.tensor for named in named_tensors(parts)]
    for optimizer in parts.optimizers:
        map_tensors(dict(state_of(optimizer)), lambda tensor: tensors.append(tensor))
    return sum(bytes_of(tensor) for tensor in tensors)


def copy_state(parts: TrainingParts, step: int, device_budget: int | None = None) -> StateCopy:
    """Copy everything; `device_budget`: bytes of device memory for a moment."""
    began = time.perf_counter()
    named = [tensor for tensor in named_tensors(parts) if not tensor.is_average]
    names = {id(tensor.tensor): tensor.name for tensor in named}
    live = {tensor.name: tensor.tensor for tensor in named}
    states = [optimizer_state(optimizer, names) for optimizer in parts.optimizers]
    moments = {f"optimizer_{n}/{path}": tensor for n, state in enumerate(states) for path, tensor in state.tensors()}
    copies = HostCopies([*live.values(), *moments.values()], device_budget)
    check = FiniteCheck({**live, **moments}, copies, [tensor.name for tensor in named if not tensor.is_trained])
    later, averages, average_check = _later_state(parts)
    return StateCopy(
        step=step,
        tensors={name: copies.of(tensor) for name, tensor in live.items()},
        caches=frozenset(tensor.name for tensor in named if tensor.is_cache),
        optimizers=tuple(state.with_tensors(copies.of) for state in states),
        later=later,
        rng=rng_state(),
        nbytes=copies.nbytes + averages.nbytes,
        blocked=time.perf_counter() - began,
        checks=(check, average_check),
        copies=(copies, averages),
        twins=_twin_norms(parts),
    )


def with_new_optimizer(copy: StateCopy, parts: TrainingParts) -> StateCopy | None:
    """Add the last optimizer to a copy; None where that one already has state."""
    *others, new = parts.optimizers
    names = {id(named.tensor): named.name for named in named_tensors(parts) if named.name in copy.tensors}
    parameters = [id(parameter) for group in new.param_groups for parameter in group["params"]]
    if state_of(new) or len(others) != len(copy.optimizers) or not names.keys() >= set(parameters):
        return None
    tensors: list[Tensor] = []
    map_tensors(groups_of(new), tensors.append)
    groups = HostCopies(tensors, 0)
    later = dataclasses.replace(
        copy.later, hyper_parameters=(*copy.later.hyper_parameters, map_tensors(groups_of(new), groups.of))
    )
    optimizers = (*copy.optimizers, optimizer_state(new, names))
    return dataclasses.replace(copy, optimizers=optimizers, later=later, copies=(*copy.copies, groups))


def with_what_followed(copy: StateCopy, parts: TrainingParts) -> StateCopy:
    """Update schedules, loss scale and averages to what the loop has left."""
    began = time.perf_counter()
    later, averages, check = _later_state(parts)
    return dataclasses.replace(
        copy,
        later=later,
        nbytes=copy.nbytes - copy.copies[1].nbytes + averages.nbytes,
        blocked=copy.blocked + time.perf_counter() - began,
        checks=(copy.checks[0], check),
        copies=(copy.copies[0], averages),
        twins=_twin_norms(parts),
    )


def _twin_norms(parts: TrainingParts) -> tuple[TwinNorm, ...]:
    return tuple([norm for twin in parts.twins if (norm := TwinNorm.of(twin)) is not None])


def _later_state(parts: TrainingParts) -> tuple[LaterState, HostCopies, FiniteCheck]:
    named = [tensor for tensor in named_tensors(parts) if tensor.is_average]
    live = {tensor.name: tensor.tensor for tensor in named}
    groups = tuple(groups_of(optimizer) for optimizer in parts.optimizers)
    schedulers = tuple((type(scheduler).__name__, scheduler.state_dict()) for scheduler in parts.schedulers)
    scaler = None if parts.scaler is None or not parts.scaler.is_enabled() else scaler_state(parts.scaler)
    tensors: list[Tensor] = list(live.values())
    map_tensors((groups, schedulers, scaler), tensors.append)
    copies = HostCopies(tensors, 0)  # the budget is for the other tensors, which may still be copied
    state = LaterState(
        averaged={name: copies.of(tensor) for name, tensor in live.items()},
        hyper_parameters=map_tensors(groups, copies.of),
        schedulers=map_tensors(schedulers, copies.of),
        scaler=map_tensors(scaler, copies.of),
    )
    return state, copies, FiniteCheck(live, copies, [tensor.name for tensor in named if not tensor.is_trained])
