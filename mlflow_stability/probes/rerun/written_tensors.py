"""Undoes what the operations of a run write into tensors that existed before it.

Each operation passes through `WrittenTensors.run`, which copies what the operation is about to write to, within a
budget. Guarantees: after `restore` the memory of those tensors and their versions are what they were, whoever holds
them, and so are the random number generators that were passed to operations. An operation that could not be undone is
not carried out.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.hooks import torch_api

MAX_BYTES = 256 * 2**20  # of copies in one run
MAX_SECONDS = 10.0  # of one run
# These operations give a tensor other memory, which a copy does not undo.
_MOVING = frozenset({"resize_", "resize_as_", "set_", "_resize_output_"})


class NotRunAgain(BaseException):
    """A run was given up. Not an `Exception`, because a model that catches those would hide it."""


class WrittenTensors:
    def __init__(self, max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES) -> None:
        torch_api.need("TorchDispatchMode", "DisableTorchDispatch", "unsafe_set_version_counter", "tree_map")
        self._max_seconds = max_seconds
        self._deadline = time.perf_counter() + max_seconds
        self._bytes_left = max_bytes
        self._own_storages: set[int] = set()
        self._watched_storages: set[int] = set()
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        self._versions: dict[int, tuple[Tensor, int]] = {}
        self._without_gradient: dict[int, Tensor] = {}
        self._generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        self.moved = False  # the run changed something outside it: another run would begin differently

    def stand_ins(self, tensors: Iterable[Tensor], watched: bool) -> None:
        """Declare tensors that belong to the run. `watched`: a write to one counts as a change of what it replaces."""
        storages = {storage for tensor in tensors if (storage := storage_of(tensor)) is not None}
        self._own_storages |= storages
        if watched:
            self._watched_storages |= storages

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if time.perf_counter() > self._deadline:
            raise NotRunAgain(f"it takes more than {self._max_seconds:.0f} s")
        given = self._tensors_in((*args, *kwargs.values()))
        positions, names = _written_arguments(func)
        if names:
            written = [args[position] for position in positions if position < len(args)]
            written += [value for name, value in kwargs.items() if name in names]
            for tensor in self._tensors_in(written):
                self._save(_name(func), tensor, any(other.requires_grad for other in given))
        result = func(*args, **kwargs)
        given_storages = {storage_of(tensor) for tensor in given}
        self._own_storages |= {
            storage
            for tensor in self._tensors_in((result,))
            if (storage := storage_of(tensor)) is not None and storage not in given_storages
        }
        return result

    def restore(self) -> None:
        with torch_api.DisableTorchDispatch(), torch.no_grad():
            for whole, copy in self._copies.values():
                whole.copy_(copy)
        for tensor in self._without_gradient.values():
            if tensor.grad_fn is not None:
                tensor.detach_()
        for tensor, version in self._versions.values():
            if version_of(tensor) != version:
                _set_version(tensor, version)
        for generator, state in self._generators.values():
            generator.set_state(state)

    def _tensors_in(self, values: Iterable[Any]) -> list[Tensor]:
        tensors: list[Tensor] = []
        for value in values:
            if isinstance(value, Tensor):
                tensors.append(value)
            elif isinstance(value, list | tuple):
                tensors += self._tensors_in(value)
            elif isinstance(value, torch.Generator) and id(value) not in self._generators and not _is_shared(value):
                self._generators[id(value)] = value, value.get_state()
                self.moved = True
        return tensors

    def _save(self, operation: str, tensor: Tensor, with_gradient: bool) -> None:
        storage_key = storage_of(tensor)
        if storage_key is None:
            raise NotRunAgain(f"{operation} writes into a {type(tensor).__name__}, which cannot be copied")
        self.moved |= storage_key in self._watched_storages
        if storage_key in self._own_storages:
            return
        if operation in _MOVING:
            raise NotRunAgain(f"{operation} replaces the memory of an existing tensor")
        self.moved = True
        if torch.is_grad_enabled() and (tensor.grad_fn is not None or (tensor._is_view() and with_gradient)):
            raise NotRunAgain(f"{operation} adds an existing tensor to an autograd graph")
        if not tensor.requires_grad:
            self._without_gradient[id(tensor)] = tensor
        if not tensor.is_inference():
            self._versions.setdefault(id(tensor), (tensor, version_of(tensor)))
        if storage_key in self._copies:
            return
        storage = tensor.untyped_storage()
        self._bytes_left -= storage.nbytes()
        if self._bytes_left < 0:
            raise NotRunAgain("it writes into tensors too large to copy")
        with torch_api.DisableTorchDispatch(), torch.no_grad():
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies[storage_key] = whole, whole.clone()


class TrackedWrites(torch_api.TorchDispatchMode):  # type: ignore[misc]
    """Passes each operation inside it through a `WrittenTensors`."""

    supports_higher_order_operators = True

    def __init__(self, written: WrittenTensors) -> None:
        super().__init__()
        self._written = written

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and loading the compiler would take seconds

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._written.run(func, args, kwargs or {})


def storage_of(tensor: Tensor) -> int | None:
    """Return which memory a plain tensor lies in; None for tensors of other kinds."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return None
    number: int = tensor.untyped_storage()._cdata
    return number


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written to; torch does not count that in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


@functools.lru_cache(maxsize=1024)
def _written_arguments(func: Any) -> tuple[frozenset[int], frozenset[str]]:
    schema = getattr(func, "_schema", None)
    # Older batch norm operations of torch do not declare that they write to the running statistics.
    statistics = ("running_mean", "running_var") if "batch_norm" in _name(func) else ()
    written = {
        position: argument.name
        for position, argument in enumerate(() if schema is None else schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in statistics
    }
    return frozenset(written), frozenset(written.values())


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).partition(".")[0]


def _is_shared(generator: torch.Generator) -> bool:
    return any(generator is shared for shared in (torch.default_generator, *torch.cuda.default_generators))


def _set_version(tensor: Tensor, version: int) -> None:
    setter: Any = torch_api.unsafe_set_version_counter
    try:
        setter((tensor,), (version,))
    except TypeError:  # before PyTorch 2.7 it took one tensor
        setter(tensor, version)
