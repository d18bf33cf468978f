"""Trains on two gloo processes of which one is odd; prints how many seconds each step took.

Arguments: what is odd, the folder for the journal, and whether the autopilot is on. `failed`: what counts captures
fails on rank 1; `norms`: what measures weights fails there; `none`: rank 1 has no gradients; `uneven`: rank 1 has fewer
batches, inside `Join`; `extra`: rank 1 asks for an agreement that rank 0 knows nothing of; `killed`: rank 1 is killed
where the script itself waits for no process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability

STEPS, ODD_AT = 24, 7


def main(odd: str, folder: Path, autopilot: bool) -> None:
    torch.set_num_threads(1)
    options = mlflow_stability.Options(journal_dir=folder)
    mlflow_stability.autolog(offline=True, rollback=autopilot, strict=odd in ("none", "uneven"), options=options)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model = DistributedDataParallel(plain) if odd in ("uneven", "killed") else fully_shard_all(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if odd == "uneven":
        assert isinstance(model, DistributedDataParallel)
        with Join([model]):
            train(odd, rank, model, optimizer, STEPS if rank == 0 else ODD_AT)
    elif odd == "killed":
        assert isinstance(model, DistributedDataParallel)
        with model.no_sync():
            train(odd, rank, model, optimizer, STEPS)
        os._exit(mlflow_stability.autolog(disable=True) is not None)  # the groups of the script have lost a process
    else:
        train(odd, rank, model, optimizer, STEPS)
    dist.barrier()
    dist.destroy_process_group()
    if odd == "uneven":
        # A DDP that outlives its group ends gloo's threads while it holds the GIL, for which one of them may wait:
        # torch deadlocks, watched or not (https://github.com/pytorch/pytorch/issues/56297).
        os._exit(mlflow_stability.autolog(disable=True) is not None)


def fully_shard_all(model: nn.Sequential) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for item in (model[0], model[2], model):
        fully_shard(item, mesh=mesh)
    return model


def train(odd: str, rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    ended = time.monotonic()
    for step in range(1, steps + 1):
        loss = model(torch.randn(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if rank and step == ODD_AT:
            be_odd(odd)
        if rank and odd == "none" and step >= ODD_AT:
            optimizer.zero_grad()
        if odd == "killed" and step == 1:
            dist.barrier()  # they share nothing else that keeps one from being done before the other has begun
        waits = step <= 4 or odd == "killed"
        if waits and (session := mlflow_stability.current_session()) is not None:
            session._meter.ranks.poll(30.0)  # a real step takes longer than the answer of the others to the last one
        optimizer.step()
        took, ended = time.monotonic() - ended, time.monotonic()
        print(f"{took:.3f}", flush=True)


def be_odd(odd: str) -> None:
    session = mlflow_stability.current_session()
    assert session is not None
    if odd == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if odd == "extra":
        session._lifecycle._ranks.agree(True)
    if odd == "failed":
        session._meter._steps = None  # type: ignore[assignment]
    if odd == "norms":
        norms = session._meter.ranks._norms
        assert norms is not None
        norms._held = None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "autopilot")
