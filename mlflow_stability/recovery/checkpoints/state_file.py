"""A state as a file that loads with ``weights_only=True``; a sharded one beside it, written by `torch.distributed`.

Guarantees: bit for bit; reading runs no code from a file; tensors that share memory share it in the file. A sharded
state can be read by any number of ranks, without communication; what all ranks share is in `state.pt`.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import importlib
import os
import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor

from mlflow_stability.errors import CheckpointsRefused, StabilityError
from mlflow_stability.probes.gradient_norm import local_part
from mlflow_stability.recovery.checkpoints.stored_checkpoints import METADATA, SCHEMA, STATE
from mlflow_stability.recovery.state.state_copy import LaterState, OptimizerCopy, StateCopy, optimizer_state
from mlflow_stability.recovery.state.training_parts import TrainingParts, named_tensors
from mlflow_stability.recovery.state.value_tree import without_foreign


@dataclass(frozen=True, slots=True)
class WrittenFile:
    sha256: str
    size: int


def write_state(copy: StateCopy, path: Path, **more: Any) -> WrittenFile:
    """Write a state, with more entries beside it, and wait until it is on disk."""
    copy.wait()
    with path.open("xb") as file:
        target = _HashingWriter(file)
        torch.save(without_foreign(_content(copy) | more), cast("IO[bytes]", target))
        if target.failure is not None:
            raise target.failure
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(target.hash.hexdigest(), target.size)


def read_content(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote. Raises CheckpointsRefused for any other file, and runs nothing of it."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        schema = int(content["schema"])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _foreign(path, error) from error  # torch looked for a part at a negative position
    except Exception as error:  # torch raises almost anything, and advises to run the file's code
        raise _foreign(path, error) from error
    if schema > SCHEMA:
        raise CheckpointsRefused(
            f"{path} was written by a later version (schema {schema}, this one reads up to {SCHEMA}). "
            "Update mlflow-stability."
        )
    return cast("dict[str, Any]", content)


def read_state(path: Path) -> StateCopy:
    content = read_content(path)
    try:
        return _copy_of(content)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _foreign(path, error) from error


def _foreign(path: Path, error: Exception) -> CheckpointsRefused:
    return CheckpointsRefused(
        f"{path} holds something else than a state that mlflow-stability saved ({type(error).__name__}). "
        "Nothing of it was run, and nothing was changed."
    )


def _copy_of(content: dict[str, Any]) -> StateCopy:
    return StateCopy(
        step=content["step"],
        tensors=content["tensors"],
        caches=frozenset(content["caches"]),
        optimizers=tuple(
            OptimizerCopy(
                kind=saved["kind"],
                members=tuple(map(tuple, saved["members"])),
                state=saved["state"],
                shared=saved["shared"],
                on_host={name: tuple(keys) for name, keys in saved["on_host"].items()},
            )
            for saved in content["optimizers"]
        ),
        later=LaterState(
            averaged=content["averaged"],
            hyper_parameters=tuple(map(tuple, content["hyper_parameters"])),
            schedulers=tuple((kind, state) for kind, state in content["schedulers"]),
            scaler=content["scaler"],
        ),
        rng=content["rng"],
        extra=content.get("extra", {}),
    )


def _content(copy: StateCopy) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "step": copy.step,
        "tensors": {name: tensor.detach() for name, tensor in copy.tensors.items()},
        "averaged": {name: tensor.detach() for name, tensor in copy.later.averaged.items()},
        "caches": sorted(copy.caches),
        "optimizers": [
            {
                "kind": saved.kind,
                "members": [list(members) for members in saved.members],
                "state": saved.state,
                "shared": saved.shared,
                "on_host": {name: list(keys) for name, keys in saved.on_host.items()},
            }
            for saved in copy.optimizers
        ],
        "hyper_parameters": [list(groups) for groups in copy.later.hyper_parameters],
        "schedulers": [list(scheduler) for scheduler in copy.later.schedulers],
        "scaler": copy.later.scaler,
        "rng": copy.rng,
        "extra": copy.extra,
    }


class _HashingWriter:
    """Hashes what it writes; after a failure it drops the rest.

    An exception in the middle would make torch's own writer try once more as it is torn down, and end the process.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self.failure: OSError | None = None
        self._file = file

    def write(self, block: Any) -> int:
        length = memoryview(block).nbytes
        if self.failure is None:
            try:
                self._file.write(block)
            except OSError as error:
                self.failure = error
            else:
                self.hash.update(block)
                self.size += length
        return length

    def flush(self) -> None:
        """Do nothing: the file is flushed once, at its end."""


Layouts = Mapping[str, Any]  # layout of each sharded tensor, by the path under which it is saved


def layouts_of(parts: TrainingParts) -> Layouts:
    named = named_tensors(parts)
    names = {id(tensor.tensor): tensor.name for tensor in named}
    live = {tensor.name: tensor.tensor for tensor in named}
    for number, optimizer in enumerate(parts.optimizers):
        live |= {f"optimizer_{number}/{path}": tensor for path, tensor in optimizer_state(optimizer, names).tensors()}
    return {path: _layout(tensor) for path, tensor in live.items() if local_part(tensor) is not tensor}


def shards_of(copy: StateCopy, layouts: Layouts, is_first: bool) -> dict[str, Tensor]:
    """Return the tensors that this rank saves: its shards, and on rank 0 also what all ranks hold whole."""
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


@dataclass(frozen=True, slots=True)
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
    else:
        paths = [stored.relative_path for stored in metadata.storage_data.values()]
        if any(Path(path).name != path or path in ("", "..") for path in paths):
            trouble = "lists a file outside of it"
    if trouble:
        raise CheckpointsRefused(f"The file {METADATA} of the checkpoint in {folder} {trouble}. Nothing was changed.")
