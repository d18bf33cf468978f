"""Puts back what the operations of a run wrote into tensors that were there before it.

In: every operation of the run, before torch carries it out. Out: nothing. Guarantees: afterwards the memory of those
tensors, their versions and the script's own generators are what they were, whoever holds them; copies are taken of what
is about to be written to alone, within a budget; what could not be put back, or takes too long, is not carried out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api

MOST_BYTES = 256 * 2**20
"""So much is copied in one run at most."""
MOST_SECONDS = 10.0
"""So long a run may take, unless somebody knows better."""
MOVING = frozenset({"resize_", "resize_as_", "set_", "_resize_output_"})
"""These give a tensor other memory, which no copy undoes."""


class NotRunAgain(BaseException):
    """A run of ours was given up. Not an `Exception`: a model that goes on after one would hide it."""


class WrittenTensors:
    """What one run has written to so far."""

    def __init__(self, seconds: float = MOST_SECONDS, most_bytes: int = MOST_BYTES) -> None:
        torch_api.need("TorchDispatchMode", "DisableTorchDispatch", "unsafe_set_version_counter", "tree_map")
        self._seconds = seconds
        self._until = time.perf_counter() + seconds
        self._room = most_bytes
        self._made: set[int] = set()
        """Storages that the run has made itself."""
        self._watched: set[int] = set()
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._versions: dict[int, tuple[Tensor, int]] = {}
        self._leaves: dict[int, Tensor] = {}
        """Of these there was no gradient to be had."""
        self._dice: dict[int, tuple[torch.Generator, Tensor]] = {}
        self._writes: dict[Any, tuple[frozenset[int], frozenset[str]]] = {}
        self.moved = False
        """Whether something outside of the run was written to, or drawn from: a third run would begin otherwise."""

    def stand_ins(self, tensors: Iterable[Tensor], watched: bool) -> None:
        """These belong to the run. `watched`: for what they stand for, a write would be a change."""
        keys = {key for each in tensors if (key := storage_of(each)) is not None}
        self._made |= keys
        if watched:
            self._watched |= keys

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Carry one operation out."""
        if time.perf_counter() > self._until:
            raise NotRunAgain(f"it takes more than {self._seconds:.0f} s")
        given: list[Tensor] = []
        self._collect(args, given)
        if kwargs:
            self._collect(kwargs.values(), given)
        written = self._written_by(func, args, kwargs)
        if written:
            with_gradient = any(each.requires_grad for each in given)
            for each in written:
                self._keep(func, each, with_gradient)
        result = func(*args, **kwargs)
        made: list[Tensor] = []
        self._collect((result,), made)
        if made:
            known = {storage_of(each) for each in given}
            self._made |= {key for each in made if (key := storage_of(each)) is not None and key not in known}
        return result

    def restore(self) -> None:
        """Everything is as it was before the run."""
        with torch_api.DisableTorchDispatch(), torch.no_grad():
            for whole, copy in self._copies.values():
                whole.copy_(copy)
        for each in self._leaves.values():
            if each.grad_fn is not None:
                each.detach_()
        for tensor, version in self._versions.values():
            if version_of(tensor) != version:
                _set_version(tensor, version)
        for generator, state in self._dice.values():
            generator.set_state(state)

    def _collect(self, values: Iterable[Any], found: list[Tensor]) -> None:
        """The tensors in what an operation takes or gives; generators are noted on the way."""
        for each in values:
            if isinstance(each, Tensor):
                found.append(each)
            elif isinstance(each, list | tuple):
                self._collect(each, found)
            elif isinstance(each, torch.Generator):
                self._keep_dice(each)

    def _keep_dice(self, generator: torch.Generator) -> None:
        if id(generator) not in self._dice and not _is_torchs_own(generator):
            self._dice[id(generator)] = generator, generator.get_state()
            self.moved = True

    def _keep(self, func: Any, tensor: Tensor, with_gradient: bool) -> None:
        key = storage_of(tensor)
        if key is None:
            raise NotRunAgain(f"{_name(func)} writes into a {type(tensor).__name__}, which cannot be copied")
        if key in self._watched:
            self.moved = True
        if key in self._made:
            return
        if _name(func) in MOVING:
            raise NotRunAgain(f"{_name(func)} replaces the memory of an existing tensor")
        self.moved = True
        if torch.is_grad_enabled() and (tensor.grad_fn is not None or (tensor._is_view() and with_gradient)):
            raise NotRunAgain(f"{_name(func)} adds an existing tensor to an autograd graph")
        if not tensor.requires_grad:
            self._leaves[id(tensor)] = tensor
        if not tensor.is_inference():
            self._versions.setdefault(id(tensor), (tensor, version_of(tensor)))
        if key in self._copies:
            return
        storage = tensor.untyped_storage()
        self._room -= storage.nbytes()
        if self._room < 0:
            raise NotRunAgain("it writes into tensors too large to copy")
        with torch_api.DisableTorchDispatch(), torch.no_grad():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies[key] = whole, whole.clone()

    def _written_by(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors that an operation writes to, by what torch says of it."""
        places = self._writes.get(func)
        if places is None:
            places = self._writes[func] = _written_places(func)
        numbers, names = places
        if not names:
            return []
        values = [args[at] for at in numbers if at < len(args)]
        values += [value for name, value in kwargs.items() if name in names]
        found: list[Tensor] = []
        self._collect(values, found)
        return found


class TrackedWrites(torch_api.TorchDispatchMode):  # type: ignore[misc]
    """Inside it, what is written is noted."""

    supports_higher_order_operators = True

    def __init__(self, written: WrittenTensors) -> None:
        super().__init__()
        self._written = written

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while this is on, and to load the compiler for that would take seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Carry one operation out."""
        return self._written.run(func, args, kwargs or {})


def storage_of(tensor: Tensor) -> int | None:
    """Which memory a plain tensor lies in; None for any other."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None
    number: int = tensor.untyped_storage()._cdata
    return number


def _written_places(func: Any) -> tuple[frozenset[int], frozenset[str]]:
    schema = getattr(func, "_schema", None)
    arguments = () if schema is None else schema.arguments
    # Of the running statistics of a batch norm torch's older operations do not say that they are written to.
    statistics = ("running_mean", "running_var") if "batch_norm" in _name(func) else ()
    found = {
        at: each.name
        for at, each in enumerate(arguments)
        if (each.alias_info is not None and each.alias_info.is_write) or each.name in statistics
    }
    return frozenset(found), frozenset(found.values())


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).partition(".")[0]


def _is_torchs_own(generator: torch.Generator) -> bool:
    """Whether it is one of those that everybody draws from, which are kept by themselves."""
    if generator is torch.default_generator:
        return True
    return any(generator is each for each in torch.cuda.default_generators)


def version_of(tensor: Tensor) -> int:
    """How often it was written to; torch does not count that of tensors made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def _set_version(tensor: Tensor, version: int) -> None:
    setter: Any = torch_api.unsafe_set_version_counter
    try:
        setter((tensor,), (version,))
    except TypeError:  # before PyTorch 2.7 it took one tensor
        setter(tensor, version)
