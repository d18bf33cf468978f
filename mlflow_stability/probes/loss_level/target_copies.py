"""Finds second copies of a trained model that compute its target: target networks, momentum encoders, mean teachers.

In: the modules and optimizers of a process. Out: copies, each with what is known about it. Guarantees: values are
compared on the device and arrive later; modules are referenced weakly; nothing is put on them.

A copy has parameters of the same names and shapes as a trained module or a part of it, and no optimizer changes them.
It computes a target if the training calls it between most steps. An average of the weights that is only evaluated is
not called there, and a frozen teacher has other values than its student and keeps them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.hooks import MODULE_CALLS, WatchedCalls
from mlflow_stability.probes.objects.model_discovery import outermost, places_of
from mlflow_stability.probes.tensors.gradient_norm import is_split

MOST_COPIES = 8
"""Number of copies that are followed."""
MOST_WATCHED = 64
"""Number of modules of one copy whose calls are watched: a script may call a method that calls its parts."""
MOST_MODULES = 4096
"""Above this number of modules no copy is searched for: that would take a second."""
NEAR = 1e-3
"""Difference of the values, as a share of their size, up to which one is a copy of the other: averaging rounds."""
COMPARED = 3
"""Number of its parameters that are compared with those of the trained model."""


class TargetCopy:
    """A copy of a trained module."""

    def __init__(self, copy: Module, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._copy = weakref.ref(copy)
        self._pairs = [(weakref.ref(own), weakref.ref(trained)) for own, trained in pairs]
        self._watched: list[WatchedCalls] = []
        self.was_called = False
        """Whether it was called since this was last set to False."""
        self.is_equal = False
        """Whether it had the values of the trained module when it was found."""
        self.has_changed = False
        self._checksum: float | None = None

    @property
    def module(self) -> Module | None:
        """The copy; None once the script has let go of it."""
        return self._copy()

    def watch(self, guard: Callable[..., Callable[..., object]]) -> None:
        """Begin to observe calls of it and its parts."""
        copy = self._copy()
        if copy is not None and not self._watched:
            told = guard("target copies", self._called)
            owners = [each for each in Module.modules(copy) if each is copy or any(True for _ in each._parameters)]
            self._watched = [MODULE_CALLS.watch(each, told) for each in owners[:MOST_WATCHED]]

    def look_away(self) -> None:
        """Observe no calls any more."""
        while self._watched:
            self._watched.pop().remove()

    def comparison(self) -> Tensor | None:
        """On the device: a checksum of its values, and how far they are from those of the trained module."""
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
        """Take in what arrived of a comparison."""
        if self._checksum is None:
            self.is_equal = distance <= NEAR
        elif checksum != self._checksum:
            self.has_changed = True
        self._checksum = checksum

    def _called(self, _module: Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self.was_called = True


def target_copies(modules: Sequence[Module], optimizers: Iterable[Optimizer]) -> list[TargetCopy]:
    """The copies of trained modules among all modules of a process."""
    trained = set(places_of(optimizers))
    roots = outermost(modules)
    if not trained or len(modules) > MOST_MODULES:
        return []
    resting = [each for root in roots for each in _resting(root, trained)]
    if not resting:
        return []
    known = [_names(each) for root in roots for each in _training(root, trained)]
    found = []
    for copy in resting[: 4 * MOST_COPIES]:
        names = _names(copy)
        twin = next((each for each in known if _has(each, names)), None)
        if twin is not None:
            pairs = sorted(((own, twin[name]) for name, own in names.items()), key=_telling)
            trains = [pair for pair in pairs if id(pair[1]) in trained and pair[0].is_floating_point()]
            if trains:
                found.append(TargetCopy(copy, trains[:COMPARED]))
    return found[:MOST_COPIES]


def _can_be_compared(own: Tensor, trained: Tensor) -> bool:
    """Return False on two devices, and where values are split over processes: a rank cannot compare its part alone."""
    return own.device == trained.device and not own.is_meta and not is_split(own) and not is_split(trained)


def _telling(pair: tuple[Tensor, Tensor]) -> tuple[bool, int]:
    """Order in which parameters tell copies apart: weights are drawn at random, biases are often constant."""
    return pair[0].dim() < 2, pair[0].numel()


def _names(module: Module) -> dict[str, Tensor]:
    return dict(Module.named_parameters(module))


def _has(twin: dict[str, Tensor], names: dict[str, Tensor]) -> bool:
    if len(twin) < len(names):
        return False
    return all((other := twin.get(name)) is not None and other.shape == own.shape for name, own in names.items())


def _is_trained(parameter: Tensor, trained: set[int]) -> bool:
    return parameter.requires_grad and id(parameter) in trained


def _resting(module: Module, trained: set[int]) -> Iterator[Module]:
    """The largest modules in it none of whose parameters is trained."""
    parameters = list(Module.parameters(module))
    if not parameters:
        return
    if not any(_is_trained(each, trained) for each in parameters):
        if any(each.dim() >= 2 for each in parameters):
            yield module
        return
    for child in module._modules.values():
        if child is not None:
            yield from _resting(child, trained)


def _training(module: Module, trained: set[int]) -> Iterator[Module]:
    """All modules in it that have a trained parameter."""
    for each in Module.modules(module):
        if any(_is_trained(one, trained) for one in Module.parameters(each)):
            yield each
