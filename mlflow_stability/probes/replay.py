"""Runs a forward pass once more without the training noticing.

In: a model and what it was called with. Out: what comes out this time. Promised: no gradient, parameter, buffer, input,
random number, attribute or variable of the training is changed: what can be reached is noted before and put back after,
and tensors that are written to are put back whoever holds them. Files that the script's own code writes are not.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.func import functional_call
from torch.nn import Module
from torch.nn.modules import module as torch_module

from mlflow_stability.probes import torch_api
from mlflow_stability.probes.module_names import WRAPPERS
from mlflow_stability.probes.reachable_state import ReachableState
from mlflow_stability.probes.written_tensors import NotRunAgain, Undoing, WrittenTensors

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class _Passes(threading.local):
    again = 0


_passes = _Passes()


def runs_again() -> bool:
    """Whether what runs in this thread now is such a pass, and not one of the training."""
    return _passes.again > 0


def unwrapped(module: Module) -> Module:
    """The model itself, without what was wrapped around it: that one runs without a compiler or collectives."""
    for _ in range(len(WRAPPERS) + 1):
        inner = next((module._modules[name] for name in WRAPPERS if set(module._modules) == {name}), None)
        if inner is None:
            return module
        module = inner
    return module


def run_again(
    model: Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device_type: str,
    autocast: tuple[bool, torch.dtype],
    state: ReachableState | None = None,
) -> Any:
    """What comes out of the model, without gradients and on copies of its buffers.

    `state` is what it could change, if that was noted already; `NotRunAgain` is raised where it cannot be put back.
    """
    state = state or ReachableState(model, args, kwargs, with_hooks=True)
    if state.refusal:
        raise NotRunAgain(state.refusal)
    stand_ins = {name: each.detach().clone() for name, each in Module.named_buffers(model)}
    given, named = torch_api.tree_map(
        lambda each: each.detach() if isinstance(each, torch.Tensor) else each, (args, dict(kwargs))
    )
    written = WrittenTensors()
    written.stand_ins(stand_ins.values(), watched=False)
    on, dtype = autocast
    # Weights that are cast without gradients must not be found in the cache by the pass that needs them.
    precision = torch.autocast(device_type, dtype=dtype, enabled=on, cache_enabled=False)
    with kept(state, written), torch.no_grad(), precision, Undoing(written):
        _passes.again += 1
        try:
            return functional_call(model, stand_ins, given, named)
        finally:
            _passes.again -= 1


@contextlib.contextmanager
def kept(state: ReachableState, written: WrittenTensors) -> Iterator[None]:
    """What is changed inside is afterwards what it was."""
    try:
        yield
    finally:
        try:
            written.put_back()
        finally:
            written.moved |= state.put_back()


@contextlib.contextmanager
def random_numbers_kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Whatever is drawn inside, the generators are afterwards where they were: the host's and those of the devices."""
    far = [each for each in dict.fromkeys(devices) if each.type not in ("cpu", "meta")]
    host, python = torch.get_rng_state(), random.getstate()
    states = [torch.get_device_module(each).get_rng_state(each) for each in far]
    numpy: Any = sys.modules.get("numpy.random")  # a script that has not loaded it draws nothing from it
    numpys = None if numpy is None else numpy.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(host)
        for each, state in zip(far, states, strict=True):
            torch.get_device_module(each).set_rng_state(state, each)
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(numpys)


@contextlib.contextmanager
def hooks_muted(model: Module) -> Iterator[None]:
    """Without the forward hooks of the script: what they note down, they would note twice. Torch's own are kept."""
    tables = [getattr(each, name) for each in Module.modules(model) for name in _HOOKS]
    tables += [getattr(torch_module, f"_global{name}") for name in _HOOKS]
    before = [(table, dict(table)) for table in tables]
    try:
        for table, hooks in before:
            for number, hook in hooks.items():
                if not str(getattr(hook, "__module__", "")).startswith("torch."):
                    del table[number]
        yield
    finally:
        for table, hooks in before:
            ours = {number: hook for number, hook in table.items() if number not in hooks and _is_ours(hook)}
            if list(table) != [*hooks, *ours]:
                table.clear()
                table.update(hooks | ours)  # ours are taken off by whoever has put them on


def _without_graph(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("mlflow_stability.")
