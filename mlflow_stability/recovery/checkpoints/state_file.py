"""A state as a file that loads with ``weights_only=True``, so that no checkpoint can run code.

Guarantees: bit for bit; tensors that share memory share it in the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.recovery.checkpoints.stored_checkpoints import SCHEMA
from mlflow_stability.recovery.state.state_copy import LaterState, OptimizerCopy, StateCopy
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
    """Read a state to the host."""
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
