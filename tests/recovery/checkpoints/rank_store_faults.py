"""Writes checkpoints on two gloo processes that cannot: prints, on each, the outcome of each of them.

Argument: a folder. A NaN on rank 1, different steps, a full disk on rank 1, all well, and rank 1
killed.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointRanks, CheckpointStore, RankStore
from mlflow_stability.recovery.checkpoints.state_file import layouts_of
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state
from mlflow_stability.recovery.state.training_parts import find_parts


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    parts = find_parts([torch.optim.SGD(model.parameters(), lr=0.1)])
    ranks = CheckpointRanks()
    own = CheckpointStore(folder, "run") if rank == 0 else None
    store = RankStore(ranks, lambda: layouts_of(parts), own)

    def attempt(step: int, finite: bool = True) -> None:
        copy: StateCopy = dataclasses.replace(copy_state(parts, 0), step=step)
        try:
            meta = store.commit(copy, 1.0, None, finite)
            print(step, "written" if meta else "nothing", flush=True)
        except (OSError, RuntimeError) as error:
            print(step, type(error).__name__, str(error).split("\n")[0][:200], flush=True)

    attempt(10, finite=rank == 0)
    attempt(20 + rank)
    dist.barrier()
    if rank == 1:
        write = FileSystemWriter.write_data
        FileSystemWriter.write_data = full_disk  # type: ignore[method-assign,assignment]
    attempt(30)
    if rank == 1:
        FileSystemWriter.write_data = write  # type: ignore[method-assign]
    attempt(40)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    attempt(50)
    os._exit(0)  # the groups have lost a process


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
