"""Sharded states as one checkpoint of `torch.distributed.checkpoint`; what all ranks share is in `state.pt`.

Guarantees: a checkpoint can be read by any number of ranks, without communication, and runs no code from the file.
"""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mlflow_stability.errors import CheckpointsRefused, StabilityError
from mlflow_stability.probes.gradient_norm import local_part
from mlflow_stability.recovery.checkpoints.state_file import read_content, read_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import METADATA, STATE
from mlflow_stability.recovery.state.state_copy import StateCopy, optimizer_state
from mlflow_stability.recovery.state.training_parts import TrainingParts, named_tensors

Layouts = Mapping[str, Any]  # layout of each sharded tensor, by the path under which it is saved


def layouts_of(parts: TrainingParts) -> Layouts:
    named = named_tensors(parts)
    names = {id(tensor.tensor): tensor.name for tensor in named}
    live = {tensor.name: tensor.tensor for tensor in named}
    for number, optimizer in enumerate(parts.optimizers):
        live |= {f"optimizer_{number}/{path}": tensor for path, tensor in optimizer_state(optimizer, names).tensors()}
    return {path: _layout(tensor) for path, tensor in live.items() if local_part(tensor) is not tensor}


def shards_of(copy: StateCopy, layouts: Layouts, is_first: bool) -> dict[str, Tensor]:
    """Return the tensors that this rank saves: its shards, and on rank 0 the tensors that all ranks hold whole.

    Running statistics may differ between ranks: those of rank 0 are saved.
    """
    shards: dict[str, Tensor] = {}

    def take(path: str, tensor: Tensor) -> Tensor:
        if path in layouts:
            shards[path] = _split(tensor, layouts[path])
        elif is_first and tensor.layout is torch.strided:
            shards[path] = tensor
        return tensor

    _with_tensors(copy, take)
    return shards


def without_shards(copy: StateCopy, layouts: Layouts) -> StateCopy:
    """Return the state with meta tensors in place of values: what all ranks share."""

    def emptied(path: str, tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided:
            return tensor
        shape = layouts[path].shape if path in layouts else tensor.shape
        return torch.empty(tuple(shape), dtype=tensor.dtype, device="meta")

    return _with_tensors(copy, emptied)


def write_shards(shards: dict[str, Tensor], folder: Path, group: Any) -> None:
    """Collective: write the shards of all ranks of `group`; None for a sharded training of one rank."""
    checkpoint = _torch_checkpoints()
    writer = checkpoint.FileSystemWriter(folder)
    try:
        checkpoint.save(shards, storage_writer=writer, process_group=group)
    except checkpoint.CheckpointException as failed:  # no `Exception`, and as long as the traces of all processes
        raise _first_of(failed) from failed


def read_sharded(folder: Path, copy: StateCopy, parts: TrainingParts) -> StateCopy:
    """Read the part of a state that this rank holds; `copy`: the shared part, read from its file."""
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
    """Return the error of the lowest rank that failed."""
    rank, (error, _) = min(failed.failures.items(), key=lambda item: item[0])
    if isinstance(error, StabilityError):
        return error
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return OSError(f"rank {rank}: {reason}")


def read_rank(folder: Path, rank: int, size: int) -> StateCopy:
    """Read the shared part of a state; random numbers only if it was written by as many ranks."""
    content = read_content(folder / STATE)
    copy = read_state(folder / STATE)
    ranks = content.get("rng_of_ranks", [])
    return dataclasses.replace(copy, rng=ranks[rank] if len(ranks) == size else {})


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    spec: Any
    local_shape: tuple[int, ...]


def _wanted_layouts(copy: StateCopy, parts: TrainingParts) -> dict[str, _Wanted]:
    """Return the layouts of saved tensors in this training; optimizer state is sharded like its parameter."""
    live = {named.name: named.tensor for named in named_tensors(parts)}
    layouts: dict[str, _Wanted] = {}

    def compare(path: str, name: str, saved: Tensor) -> None:
        tensor = live.get(name)
        if tensor is not None and tensor.shape == saved.shape and local_part(tensor) is not tensor:
            layouts[path] = _Wanted(_layout(tensor), tuple(local_part(tensor).shape))

    for name, tensor in (*copy.tensors.items(), *copy.later.averaged.items()):
        compare(name, name, tensor)
    for number, optimizer in enumerate(copy.optimizers):
        for path, tensor in optimizer.tensors():
            compare(f"optimizer_{number}/{path}", path.rpartition("#")[0], tensor)
    return layouts


def _layout(tensor: Tensor) -> Any:
    return cast("Any", tensor)._spec


def _split(local: Tensor, layout: Any) -> Tensor:
    """Wrap a local shard; `DTensor.from_local` would copy it to the device of its mesh."""
    from torch.distributed.tensor import DTensor

    made: Tensor = DTensor(local, layout, requires_grad=False)  # type: ignore[no-untyped-call]
    return made


def _with_tensors(copy: StateCopy, change: Callable[[str, Tensor], Tensor]) -> StateCopy:
    """Replace every tensor by `change(path, tensor)`."""

    def of_optimizer(number: int) -> Any:
        saved = copy.optimizers[number]
        paths = iter([f"optimizer_{number}/{path}" for path, _ in saved.tensors()])
        return saved.with_tensors(lambda tensor: change(next(paths), tensor))

    return dataclasses.replace(
        copy,
        tensors={name: change(name, tensor) for name, tensor in copy.tensors.items()},
        optimizers=tuple(of_optimizer(number) for number in range(len(copy.optimizers))),
        later=dataclasses.replace(
            copy.later, averaged={name: change(name, tensor) for name, tensor in copy.later.averaged.items()}
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


def _is_record(module: str, name: str) -> bool:
    """Whether it is a dataclass or enumeration of one of the modules, not something that they import."""
    kind = getattr(importlib.import_module(module), name, None) if module in _MODULES else None
    is_data = isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, Enum))
    return is_data and kind.__module__ == module


class _Unpickler(pickle.Unpickler):
    """Reads torch's pickled list of shards; an allow-list keeps it from calling functions."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _NAMES or _is_record(module, name):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member_of_enum  # Python 3.11.0 to 3.11.3 write members of enumerations so
        raise CheckpointsRefused(f"The file {METADATA} of a checkpoint names {module}.{name}: expected only data.")


def _member_of_enum(owner: Any, name: str) -> Any:
    if not (isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__):
        raise CheckpointsRefused(f"The file {METADATA} of a checkpoint looks up {name!r}: expected only data.")
    return owner.__members__[name]


def _torch_checkpoints() -> Any:
    """Import lazily: takes a while, and few trainings need it."""
    return importlib.import_module("torch.distributed.checkpoint")


def _reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

    content = (folder / METADATA).read_bytes()
    try:
        metadata: Metadata = _Unpickler(BytesIO(content)).load()
        _check_entries(folder, metadata)
    except CheckpointsRefused:
        raise
    except Exception as error:  # a damaged pickle raises almost anything
        raise CheckpointsRefused(
            f"The file {METADATA} of the checkpoint in {folder} is damaged ({type(error).__name__}). "
            "Nothing was changed."
        ) from error
    storage = metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()

    class SafeReader(FileSystemReader):
        def read_metadata(self, *_: Any, **__: Any) -> Metadata:
            storage.load_id = self.load_id
            return metadata

    return SafeReader(folder)


def _check_entries(folder: Path, metadata: Any) -> None:
    """Refuse what our own checkpoints never have: torch would unpickle an entry that is no tensor, and run its code."""
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    trouble = ""
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        trouble = "holds something else than a list of shards"
    elif any(type(entry) is not TensorStorageMetadata for entry in dict(metadata.state_dict_metadata).values()):
        trouble = "lists an entry that is not a tensor"
    elif any(not _is_plain_name(stored.relative_path) for stored in metadata.storage_data.values()):
        trouble = "lists a file outside of it"
    if trouble:
        raise CheckpointsRefused(f"The file {METADATA} of the checkpoint in {folder} {trouble}. Nothing was changed.")


def _is_plain_name(path: str) -> bool:
    return Path(path).name == path and path not in ("", "..")
