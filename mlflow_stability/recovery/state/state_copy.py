"""A copy of the whole state of a training: weights, buffers, optimizer state, schedules, averages, random numbers.

In: the parts of a training. Out: a `StateCopy` on the host that shares nothing with them. Guarantees: bit for bit;
nothing is drawn, changed or waited for; its size is known beforehand; optimizers that keep state where torch's do are
copied whole, nested containers included.

A loop changes state after an optimizer's step too: scheduler, loss scaler, averages. `with_what_followed` completes a
copy at the next backward pass.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.objects import state_of
from mlflow_stability.recovery.state.finite_check import FiniteCheck
from mlflow_stability.recovery.state.host_copy import HostCopies, bytes_of
from mlflow_stability.recovery.state.other_state import rng_state, scaler_state
from mlflow_stability.recovery.state.training_parts import TrainingParts, named_tensors
from mlflow_stability.recovery.state.value_tree import replaced


@dataclass(frozen=True, slots=True)
class OptimizerCopy:
    """What an optimizer knows, by the names of its parameters."""

    kind: str
    """``AdamW``: the type's name."""
    members: tuple[tuple[str, ...], ...]
    """The parameters of each group."""
    state: dict[str, Any]
    """For each parameter that has one; what is kept under other keys stands under these keys as text."""
    shared: dict[str, Any]
    """State that belongs to no parameter."""
    on_host: dict[str, tuple[str, ...]]
    """For parameters on a device: which entries of their state lie on the host, as step counters do."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the state, with a path to it."""
        for name, entry in (*self.state.items(), *self.shared.items()):
            found: list[Tensor] = []
            replaced(entry, found.append)
            for position, tensor in enumerate(found):
                yield f"{name}#{position}", tensor

    def with_tensors(self, copy_of: Callable[[Tensor], Tensor]) -> OptimizerCopy:
        """The same with copies in the place of tensors."""
        return dataclasses.replace(self, state=replaced(self.state, copy_of), shared=replaced(self.shared, copy_of))


def optimizer_state(optimizer: Optimizer, names: Mapping[int, str]) -> OptimizerCopy:
    """The optimizer's state as it lies in the training; `names` are by the identity of parameters."""
    state: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    on_host: dict[str, tuple[str, ...]] = {}
    for key, entry in state_of(optimizer).items():
        if not isinstance(key, Tensor):
            if isinstance(key, str):
                shared[key] = entry
            continue
        name = names.get(id(key))
        if name is None:  # a parameter that was taken out of its group: no step will look at its state again
            continue
        state[name] = entry
        if not key.is_cpu and isinstance(entry, dict):
            on_host[name] = tuple(k for k, each in entry.items() if isinstance(each, Tensor) and each.is_cpu)
    return OptimizerCopy(
        kind=type(optimizer).__name__,
        members=tuple(tuple(names[id(each)] for each in group["params"]) for group in optimizer.param_groups),
        state=state,
        shared=shared,
        on_host=on_host,
    )


def groups_of(optimizer: Optimizer) -> tuple[dict[str, Any], ...]:
    """The hyper-parameters of each group."""
    return tuple({key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups)


@dataclass(frozen=True, slots=True)
class LaterState:
    """What a loop changes after an optimizer's step."""

    averaged: dict[str, Tensor]
    hyper_parameters: tuple[tuple[dict[str, Any], ...], ...]
    """For each optimizer and parameter group."""
    schedulers: tuple[tuple[str, dict[str, Any]], ...]
    """Type and state of each."""
    scaler: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class StateCopy:
    """The state of a training after a step."""

    step: int
    tensors: dict[str, Tensor]
    """Parameters and buffers by name."""
    caches: frozenset[str]
    """Those that are tables and masks, which may have another shape tomorrow."""
    optimizers: tuple[OptimizerCopy, ...]
    later: LaterState
    rng: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    """The states of the script's own objects, by name; only in what goes to the disk."""
    nbytes: int = 0
    blocked: float = 0.0
    """For how many seconds the training waited for this copy."""
    checks: tuple[FiniteCheck, ...] = ()
    copies: tuple[HostCopies, ...] = ()

    def wait(self) -> None:
        """Wait until it can be read."""
        for each in self.copies:
            each.wait()

    def not_finite(self) -> frozenset[str]:
        """The tensors with NaN or infinity in them."""
        return frozenset().union(*(each.not_finite() for each in self.checks))

    def infinite_masks(self) -> frozenset[str]:
        """Buffers and frozen parameters that hold infinities, as masks do."""
        return frozenset().union(*(each.infinite_masks() for each in self.checks))

    def seconds(self) -> float:
        """What it cost: the training's waiting, or the device's time where that is more."""
        return max(self.blocked, sum(each.device_seconds() for each in self.copies))


def bytes_of_state(parts: TrainingParts) -> int:
    """How much memory a copy would take, before it is made; what is shared counts as often as it is named."""
    found = [each.tensor for each in named_tensors(parts)]
    for optimizer in parts.optimizers:
        replaced(dict(state_of(optimizer)), lambda tensor: found.append(tensor))
    return sum(bytes_of(each) for each in found)


def copy_state(parts: TrainingParts, step: int, device_budget: int | None = None) -> StateCopy:
    """Copy everything as it is now; `device_budget`: how many bytes of a device this may take for a moment."""
    began = time.perf_counter()
    named = [each for each in named_tensors(parts) if not each.is_average]
    names = {id(each.tensor): each.name for each in named}
    live = {each.name: each.tensor for each in named}
    states = [optimizer_state(each, names) for each in parts.optimizers]
    moments = {f"optimizer_{n}/{path}": tensor for n, each in enumerate(states) for path, tensor in each.tensors()}
    copies = HostCopies([*live.values(), *moments.values()], device_budget)
    check = FiniteCheck({**live, **moments}, copies, [each.name for each in named if not each.is_trained])
    later, averages, average_check = _later_state(parts)
    return StateCopy(
        step=step,
        tensors={name: copies.of(tensor) for name, tensor in live.items()},
        caches=frozenset(each.name for each in named if each.is_cache),
        optimizers=tuple(each.with_tensors(copies.of) for each in states),
        later=later,
        rng=rng_state(),
        nbytes=copies.nbytes + averages.nbytes,
        blocked=time.perf_counter() - began,
        checks=(check, average_check),
        copies=(copies, averages),
    )


def with_new_optimizer(copy: StateCopy, parts: TrainingParts) -> StateCopy | None:
    """The copy for a training with one optimizer more, the last one, which has no state yet; None where it has one."""
    *others, new = parts.optimizers
    names = {id(each.tensor): each.name for each in named_tensors(parts) if each.name in copy.tensors}
    parameters = [id(each) for group in new.param_groups for each in group["params"]]
    if state_of(new) or len(others) != len(copy.optimizers) or not names.keys() >= set(parameters):
        return None
    found: list[Tensor] = []
    replaced(groups_of(new), found.append)
    groups = HostCopies(found, 0)
    later = dataclasses.replace(
        copy.later, hyper_parameters=(*copy.later.hyper_parameters, replaced(groups_of(new), groups.of))
    )
    optimizers = (*copy.optimizers, optimizer_state(new, names))
    return dataclasses.replace(copy, optimizers=optimizers, later=later, copies=(*copy.copies, groups))


def with_what_followed(copy: StateCopy, parts: TrainingParts) -> StateCopy:
    """The copy, with schedules, loss scale and averages as the loop has left them since."""
    began = time.perf_counter()
    later, averages, check = _later_state(parts)
    return dataclasses.replace(
        copy,
        later=later,
        nbytes=copy.nbytes - copy.copies[1].nbytes + averages.nbytes,
        blocked=copy.blocked + time.perf_counter() - began,
        checks=(copy.checks[0], check),
        copies=(copy.copies[0], averages),
    )


def _later_state(parts: TrainingParts) -> tuple[LaterState, HostCopies, FiniteCheck]:
    named = [each for each in named_tensors(parts) if each.is_average]
    live = {each.name: each.tensor for each in named}
    groups = tuple(groups_of(each) for each in parts.optimizers)
    schedulers = tuple((type(each).__name__, each.state_dict()) for each in parts.schedulers)
    scaler = None if parts.scaler is None or not parts.scaler.is_enabled() else scaler_state(parts.scaler)
    found: list[Tensor] = list(live.values())
    replaced((groups, schedulers, scaler), found.append)
    copies = HostCopies(found, 0)  # the budget is the other tensors', which may still be on their way
    state = LaterState(
        averaged={name: copies.of(tensor) for name, tensor in live.items()},
        hyper_parameters=replaced(groups, copies.of),
        schedulers=replaced(schedulers, copies.of),
        scaler=replaced(scaler, copies.of),
    )
    return state, copies, FiniteCheck(live, copies, [each.name for each in named if not each.is_trained])
