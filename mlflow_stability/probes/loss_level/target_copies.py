"""Finds second copies of a trained model that compute its target: target networks, momentum encoders, mean teachers.

A copy has parameters of the same names and shapes as a trained module or a part of it, and no optimizer changes them.
It computes a target if the training calls it between most steps. An average of the weights that is only evaluated is
not called there, and a frozen teacher has other values than its student and keeps them.

Guarantees: values are compared on the device and arrive later; modules are referenced weakly and not changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import is_split
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS, WatchedCalls
from mlflow_stability.probes.model_discovery import outermost, places_of

MAX_COPIES = 8
MAX_WATCHED_MODULES = 64  # of one copy: a script may call a method that calls its parts
MAX_MODULES = 4096  # searching more for copies would take a second
MAX_DIFFERENCE = 1e-3  # of the values of a copy, as a share of their size: averaging rounds
COMPARED_PARAMETERS = 3  # of a copy


class TargetCopy:
    def __init__(self, copy: Module, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._copy = weakref.ref(copy)
        self._pairs = [(weakref.ref(own), weakref.ref(trained)) for own, trained in pairs]
        self._watched: list[WatchedCalls] = []
        self.was_called = False  # since this was last set to False
        self.is_equal = False  # it had the values of the trained module when it was found
        self.has_changed = False
        self._checksum: float | None = None

    @property
    def module(self) -> Module | None:
        """The copy, or None once the script has dropped it."""
        return self._copy()

    def is_trained(self, trained: set[int]) -> bool:
        """Return whether any of its parameters is among these, by identity."""
        return any((own := reference()) is not None and _is_trained(own, trained) for reference, _ in self._pairs)

    def watch(self, guard: Callable[..., Callable[..., object]]) -> None:
        copy = self._copy()
        if copy is not None and not self._watched:
            called = guard("target copies", self._called)
            owners = [
                module for module in Module.modules(copy) if module is copy or any(True for _ in module._parameters)
            ]
            self._watched = [MODULE_CALLS.watch(owner, called) for owner in owners[:MAX_WATCHED_MODULES]]

    def look_away(self) -> None:
        while self._watched:
            self._watched.pop().remove()

    def comparison(self) -> Tensor | None:
        """Return on the device a checksum of the values and their distance from those of the trained module."""
        pairs = [(own(), trained()) for own, trained in self._pairs]
        there = [(own.detach(), trained.detach()) for own, trained in pairs if own is not None and trained is not None]
        if not there or not all(_can_be_compared(own, trained) for own, trained in there):
            return None
        with torch.no_grad():
            first = there[0][0]
            wide = torch.float32 if first.device.type == "mps" else torch.float64
            total = torch.stack([own.to(wide).sum() for own, _ in there]).sum()
            apart = torch.stack([(own.to(wide) - trained).abs().sum() for own, trained in there]).sum()
            size = torch.stack([trained.to(wide).abs().sum() for _, trained in there]).sum()
            return torch.stack([total, apart / size])

    def compared(self, checksum: float, distance: float) -> None:
        if self._checksum is None:
            self.is_equal = distance <= MAX_DIFFERENCE
        elif checksum != self._checksum:
            self.has_changed = True
        self._checksum = checksum

    def _called(self, _module: Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self.was_called = True


def target_copies(modules: Sequence[Module], optimizers: Iterable[Optimizer]) -> list[TargetCopy]:
    trained = set(places_of(optimizers))
    roots = outermost(modules)
    if not trained or len(modules) > MAX_MODULES:
        return []
    resting = [module for root in roots for module in _resting(root, trained)]
    if not resting:
        return []
    twins = [_names(module) for root in roots for module in _training(root, trained)]
    copies = []
    for copy in resting[: 4 * MAX_COPIES]:
        names = _names(copy)
        twin = next((module for module in twins if _has(module, names)), None)
        if twin is not None:
            pairs = sorted(((own, twin[name]) for name, own in names.items()), key=_comparison_order)
            trains = [pair for pair in pairs if id(pair[1]) in trained and pair[0].is_floating_point()]
            if trains:
                copies.append(TargetCopy(copy, trains[:COMPARED_PARAMETERS]))
    return copies[:MAX_COPIES]


# Not on two devices, and not where values are split over processes.
def _can_be_compared(own: Tensor, trained: Tensor) -> bool:
    return own.device == trained.device and not own.is_meta and not is_split(own) and not is_split(trained)


# Weights first: they are drawn at random, and biases are often constant.
def _comparison_order(pair: tuple[Tensor, Tensor]) -> tuple[bool, int]:
    return pair[0].dim() < 2, pair[0].numel()


def _names(module: Module) -> dict[str, Tensor]:
    return dict(Module.named_parameters(module))


def _has(twin: dict[str, Tensor], names: dict[str, Tensor]) -> bool:
    if len(twin) < len(names):
        return False
    return all((other := twin.get(name)) is not None and other.shape == own.shape for name, own in names.items())


def _is_trained(parameter: Tensor, trained: set[int]) -> bool:
    return parameter.requires_grad and id(parameter) in trained


# The largest modules none of whose parameters is trained.
def _resting(module: Module, trained: set[int]) -> Iterator[Module]:
    parameters = list(Module.parameters(module))
    if not parameters:
        return
    if not any(_is_trained(parameter, trained) for parameter in parameters):
        if any(parameter.dim() >= 2 for parameter in parameters):
            yield module
        return
    for child in module._modules.values():
        if child is not None:
            yield from _resting(child, trained)


def _training(module: Module, trained: set[int]) -> Iterator[Module]:
    for inner in Module.modules(module):
        if any(_is_trained(parameter, trained) for parameter in Module.parameters(inner)):
            yield inner
