"""Trains under torchrun, and is started again: in its first attempt rank 1 is killed at step 35, behind a checkpoint.

Arguments: `sharded` or `plain`; a folder for journals. Each rank prints where it began.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability
from mlflow_stability import RollbackPolicy
from mlflow_stability.errors import StabilityError
from mlflow_stability.journal.layout import DELIVERED
from mlflow_stability.recovery.checkpoints.stored_checkpoints import listing

STEPS, DIES_AT, CHECKPOINT = 50, 35, 20
POLICY = RollbackPolicy(snapshot_every=10, snapshot_share=1.0, healthy_after=5, rollback_checkpoint_interval=CHECKPOINT)


def main(way: str, journals: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model: nn.Module = plain
    if way == "sharded":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for item in (plain[0], plain[2], plain):
            fully_shard(item, mesh=mesh)
    else:
        model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    begun = 0
    try:
        begun = mlflow_stability.restore(model, optimizer).step
    except StabilityError:
        print("nothing to restore", flush=True)
    print(f"rank {dist.get_rank()} begins behind step {begun}", flush=True)
    for step in range(begun + 1, STEPS + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == DIES_AT:
            wait_until(lambda: has_checkpoint(journals), "no checkpoint has proved good")
            wait_until(lambda: is_delivered(journals), "no courier has come")
            dist.barrier()
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()
    dist.barrier()
    del model  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
    gc.collect()
    dist.destroy_process_group()


def has_checkpoint(journals: Path) -> bool:
    return any(item.is_good for folder in (journals / "checkpoints").glob("*/") for item in listing(folder))


def is_delivered(journals: Path) -> bool:
    return any('"run_id"' in page.read_text() for page in journals.glob(f"*/*/{DELIVERED}"))


def wait_until(condition: Callable[[], bool], missed: str) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, missed
        time.sleep(0.1)


if __name__ == "__main__":
    os.environ["MLFLOW_STABILITY_JOURNAL_DIR"] = sys.argv[2]
    mlflow_stability.autolog(rollback=POLICY)
    main(sys.argv[1], Path(sys.argv[2]))
