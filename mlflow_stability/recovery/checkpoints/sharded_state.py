"""A state whose tensors are split over processes, as one checkpoint of `torch.distributed.checkpoint`.

In: the copy that each process has of its own shards. Out: one folder with the shards of all, and what the processes
share as `state.pt`; from it the copy that fits a training on any number of processes. Guarantees: reading asks no other
process and runs no code of the file; a tensor comes back bit for bit, whoever held which part of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from mlflow_stability.errors import CheckpointsRefused, StabilityError
from mlflow_stability.recovery.checkpoints.checkpoint_meta import METADATA, STATE
from mlflow_stability.recovery.checkpoints.state_file import read_state
from mlflow_stability.recovery.state.host_copy import local_part
from mlflow_stability.recovery.state.state_copy import StateCopy, optimizer_state
from mlflow_stability.recovery.state.training_parts import TrainingParts, named_tensors

Layouts = Mapping[str, Any]
"""How each split tensor is shared out, by the path under which it is saved."""


def layouts_of(parts: TrainingParts) -> Layouts:
    """How the tensors of a training are shared out; nothing of those that every process holds whole."""
    named = named_tensors(parts)
    names = {id(each.tensor): each.name for each in named}
    live = {each.name: each.tensor for each in named}
    for number, optimizer in enumerate(parts.optimizers):
        live |= {f"optimizer_{number}/{path}": each for path, each in optimizer_state(optimizer, names).tensors()}
    return {path: _layout(each) for path, each in live.items() if local_part(each) is not each}


def shards_of(copy: StateCopy, layouts: Layouts, is_first: bool) -> dict[str, Tensor]:
    """What this process contributes to a checkpoint: its shards, and the first process what each holds whole.

    Running statistics may differ between processes: they are to be those of one.
    """
    found: dict[str, Tensor] = {}

    def take(path: str, tensor: Tensor) -> Tensor:
        if path in layouts:
            found[path] = _split(tensor, layouts[path])
        elif is_first and tensor.layout is torch.strided:
            found[path] = tensor
        return tensor

    _with_tensors(copy, take)
    return found


def without_shards(copy: StateCopy, layouts: Layouts) -> StateCopy:
    """What of a state all processes share: of tensors only shape and type are left."""

    def emptied(path: str, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided:
            return tensor
        shape = layouts[path].shape if path in layouts else tensor.shape
        return torch.empty(tuple(shape), dtype=tensor.dtype, device="meta")

    return _with_tensors(copy, emptied)


def write_shards(shards: dict[str, Tensor], folder: Path, group: Any) -> None:
    """Write the shards of all processes of a group, each its own; every process comes here, or none.

    `group`: None for the one process of a training that is split all the same.
    """
    checkpoint = _torch_checkpoints()
    writer = checkpoint.FileSystemWriter(folder)
    try:
        checkpoint.save(shards, storage_writer=writer, process_group=group)
    except checkpoint.CheckpointException as failed:  # no `Exception`, and as long as the traces of all processes
        raise _first_of(failed) from failed


def read_sharded(folder: Path, copy: StateCopy, parts: TrainingParts) -> StateCopy:
    """The state in a folder, as far as this process is to hold it; `copy`: what all processes shared, from its file."""
    checkpoint = _torch_checkpoints()
    layouts = _wanted_layouts(copy, parts)
    shards: dict[str, Tensor] = {}

    def made(path: str, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        layout = layouts.get(path)
        local = torch.empty(tensor.shape if layout is None else layout.local_shape, dtype=tensor.dtype)
        if local.numel():
            shards[path] = local if layout is None else _split(local, layout.spec)
        return local

    here = _with_tensors(copy, made)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each process reads what it needs
        try:
            checkpoint.load(shards, storage_reader=_reader(folder), no_dist=True)
        except checkpoint.CheckpointException as failed:
            raise _first_of(failed) from failed
    return here


def _first_of(failed: Any) -> Exception:
    """The error of the first process that had one."""
    rank, (error, _) = min(failed.failures.items(), key=lambda each: each[0])
    if isinstance(error, StabilityError):
        return error
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return OSError(f"rank {rank}: {reason}")


def read_rank(folder: Path, rank: int, size: int) -> StateCopy:
    """What all processes shared, with the random numbers of one; none of another number of processes."""
    content = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    copy = read_state(folder / STATE)
    ranks = content.get("rng_of_ranks", [])
    return dataclasses.replace(copy, rng=ranks[rank] if len(ranks) == size else {})


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    spec: Any
    local_shape: tuple[int, ...]


def _wanted_layouts(copy: StateCopy, parts: TrainingParts) -> dict[str, _Wanted]:
    """How this training shares out the tensors of a saved one: the state of an optimizer as the parameter it is of."""
    live = {each.name: each.tensor for each in named_tensors(parts)}
    found: dict[str, _Wanted] = {}

    def compare(path: str, name: str, saved: Tensor) -> None:
        tensor = live.get(name)
        if tensor is not None and tensor.shape == saved.shape and local_part(tensor) is not tensor:
            found[path] = _Wanted(_layout(tensor), tuple(local_part(tensor).shape))

    for name, tensor in (*copy.tensors.items(), *copy.later.averaged.items()):
        compare(name, name, tensor)
    for number, optimizer in enumerate(copy.optimizers):
        for path, tensor in optimizer.tensors():
            compare(f"optimizer_{number}/{path}", path.rpartition("#")[0], tensor)
    return found


def _layout(tensor: Tensor) -> Any:
    return cast("Any", tensor)._spec


def _split(local: Tensor, layout: Any) -> Tensor:
    """A shard on the host as the part of a whole tensor; `from_local` would copy it to the device of its mesh."""
    from torch.distributed.tensor import DTensor

    made: Tensor = DTensor(local, layout, requires_grad=False)  # type: ignore[no-untyped-call]
    return made


def _with_tensors(copy: StateCopy, change: Callable[[str, Tensor], Tensor]) -> StateCopy:
    """The same with other tensors; each is given with the path under which it is saved."""

    def of_optimizer(number: int) -> Any:
        each = copy.optimizers[number]
        paths = iter([f"optimizer_{number}/{path}" for path, _ in each.tensors()])
        return each.with_tensors(lambda tensor: change(next(paths), tensor))

    return dataclasses.replace(
        copy,
        tensors={name: change(name, each) for name, each in copy.tensors.items()},
        optimizers=tuple(of_optimizer(number) for number in range(len(copy.optimizers))),
        later=dataclasses.replace(
            copy.later, averaged={name: change(name, each) for name, each in copy.later.averaged.items()}
        ),
    )


_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_NAMES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("collections", "OrderedDict"),
}


class _Unpickler(pickle.Unpickler):
    """Reads the list of shards, which torch writes as a pickle, and lets it name no function."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _NAMES or (module in _MODULES and isinstance(_attribute(module, name), type)):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member_of_enum  # Python 3.11.0 to 3.11.3 write members of enumerations so
        raise CheckpointsRefused(f"The file {METADATA} of a checkpoint names {module}.{name}: expected only data.")


def _member_of_enum(owner: Any, name: str) -> Any:
    """Look up a member of an enumeration, and nothing else."""
    if not (isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__):
        raise CheckpointsRefused(f"The file {METADATA} of a checkpoint looks up {name!r}: expected only data.")
    return owner.__members__[name]


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)


def _torch_checkpoints() -> Any:
    """What torch has for sharded checkpoints: it takes a while to load, and few need it."""
    return importlib.import_module("torch.distributed.checkpoint")


def _reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    with (folder / METADATA).open("rb") as file:
        metadata: Metadata = _Unpickler(cast("IO[bytes]", file)).load()
    storage = metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()

    class SafeReader(FileSystemReader):
        def read_metadata(self, *_: Any, **__: Any) -> Metadata:
            storage.load_id = self.load_id
            return metadata

    return SafeReader(folder)
