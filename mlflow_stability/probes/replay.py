"""Runs a forward pass once more without the training noticing.

In: a model and what it was called with. Out: what comes out this time. Promised: no gradient, parameter, buffer, random
number or plain attribute of the training is changed: buffers are cloned, and what a module keeps for itself in numbers,
lists, dictionaries or small tensors is put back. What lies deeper, or outside of the model, cannot be.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Module
from torch.nn.modules import module as torch_module

from mlflow_stability.probes.module_names import WRAPPERS

LARGEST_ATTRIBUTE = 2**20
"""Plain tensors of more bytes are not copied; a module that changes such a one in place keeps the change."""
_TORCHS_OWN = frozenset(vars(Module()))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


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
) -> Any:
    """What comes out of the model, without gradients and on copies of its buffers."""
    buffers = {name: each.detach().clone() for name, each in model.named_buffers()}
    on, dtype = autocast
    with attributes_kept(model), torch.no_grad(), torch.autocast(device_type, dtype=dtype, enabled=on):
        return functional_call(model, buffers, args, dict(kwargs))


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
def attributes_kept(model: Module) -> Iterator[None]:
    """What modules keep for themselves in plain attributes is afterwards what it was: counters, caches, losses."""
    before = [(each, _Attributes(each)) for each in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            attributes.put_back(module)


@contextlib.contextmanager
def hooks_muted(model: Module) -> Iterator[None]:
    """Without the forward hooks of the script: what they note down, they would note twice. Torch's own are kept."""
    tables = [getattr(each, name) for each in model.modules() for name in _HOOKS]
    tables += [getattr(torch_module, f"_global{name}") for name in _HOOKS]
    before = [(table, dict(table)) for table in tables if table]
    try:
        for table, hooks in before:
            for number, hook in hooks.items():
                if not str(getattr(hook, "__module__", "")).startswith("torch."):
                    del table[number]
        yield
    finally:
        for table, hooks in before:
            table.clear()
            table.update(hooks)


class _Attributes:
    """The plain attributes of one module."""

    def __init__(self, module: Module) -> None:
        self._values = {name: value for name, value in vars(module).items() if name not in _TORCHS_OWN}
        self._contents = {
            name: value.copy() for name, value in self._values.items() if type(value) in (list, dict, set, deque)
        }
        self._tensors = {
            name: (value._version, value.detach().clone())
            for name, value in self._values.items()
            if isinstance(value, Tensor) and not value.is_inference() and value.nbytes <= LARGEST_ATTRIBUTE
        }

    def put_back(self, module: Module) -> None:
        now = vars(module)
        for name in [each for each in now if each not in _TORCHS_OWN and each not in self._values]:
            del now[name]
        for name, value in self._values.items():
            if now.get(name, now) is not value:
                now[name] = value
        for name, contents in self._contents.items():
            _fill(self._values[name], contents)
        for name, (version, copy) in self._tensors.items():
            if self._values[name]._version != version:
                self._values[name].data.copy_(copy)


def _fill(container: Any, contents: Any) -> None:
    """Give a container back what it held, if it holds anything else."""
    if isinstance(container, set):
        if container != contents:
            container.clear()
            container.update(contents)
        return
    same = len(container) == len(contents) and all(
        mine is theirs for mine, theirs in zip(_items(container), _items(contents), strict=True)
    )
    if same:
        return
    container.clear()
    if isinstance(container, dict):
        container.update(contents)
    else:
        container.extend(contents)


def _items(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        for key, value in container.items():
            yield key
            yield value
    else:
        yield from container
