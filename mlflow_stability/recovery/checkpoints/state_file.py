"""A state as a file: it loads with ``weights_only=True``, so that no checkpoint can run code.

In: a copy. Out: a file, the facts that prove it whole, and the copy again. Guarantees: bit for bit; tensors that share
memory share it in the file; a write that fails raises, and never ends the process.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch

from mlflow_stability.errors import CheckpointsRefused
from mlflow_stability.recovery.checkpoints.checkpoint_meta import SCHEMA
from mlflow_stability.recovery.state.state_copy import LaterState, OptimizerCopy, StateCopy
from mlflow_stability.recovery.state.value_tree import without_foreign


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What was written."""

    sha256: str
    size: int


def write_state(copy: StateCopy, path: Path, **more: Any) -> WrittenFile:
    """Write a state, and more beside it, and wait until the disk has it."""
    copy.wait()
    with path.open("xb") as file:
        target = _HashingWriter(file)
        torch.save(without_foreign(_content(copy) | more), cast("IO[bytes]", target))
        if target.failure is not None:
            raise target.failure
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(target.hash.hexdigest(), target.size)


def read_state(path: Path) -> StateCopy:
    """The state in a file, on the host."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    if content["schema"] > SCHEMA:
        raise CheckpointsRefused(
            f"{path} was written by a later version (schema {content['schema']}, this one reads up to {SCHEMA}). "
            "Update mlflow-stability."
        )
    return StateCopy(
        step=content["step"],
        tensors=content["tensors"],
        caches=frozenset(content["caches"]),
        optimizers=tuple(
            OptimizerCopy(
                kind=each["kind"],
                members=tuple(map(tuple, each["members"])),
                state=each["state"],
                shared=each["shared"],
                on_host={name: tuple(keys) for name, keys in each["on_host"].items()},
            )
            for each in content["optimizers"]
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
        "tensors": {name: each.detach() for name, each in copy.tensors.items()},
        "averaged": {name: each.detach() for name, each in copy.later.averaged.items()},
        "caches": sorted(copy.caches),
        "optimizers": [
            {
                "kind": each.kind,
                "members": [list(members) for members in each.members],
                "state": each.state,
                "shared": each.shared,
                "on_host": {name: list(keys) for name, keys in each.on_host.items()},
            }
            for each in copy.optimizers
        ],
        "hyper_parameters": [list(groups) for groups in copy.later.hyper_parameters],
        "schedulers": [list(each) for each in copy.later.schedulers],
        "scaler": copy.later.scaler,
        "rng": copy.rng,
        "extra": copy.extra,
    }


class _HashingWriter:
    """Writes and hashes; after a failure it takes the rest and drops it.

    An exception in the middle would make torch's own writer, as it is torn down, try once more and end the process.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.hash = hashlib.sha256()
        self.size = 0
        self.failure: OSError | None = None
        self._file = file

    def write(self, block: Any) -> int:
        """Take a block."""
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
        """Nothing: the file is flushed once, at its end."""
