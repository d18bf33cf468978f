"""Trains on two gloo processes of which the first alone is watched; prints how many seconds each step took.

Arguments: `ddp` or `fsdp2`, the folder for the journal, and the mode: `watched`, `autopilot`, or `mixed`, where the
second process is watched too, but has no autopilot.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability

STEPS = 12


def main(way: str, folder: Path, mode: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        options = mlflow_stability.Options(journal_dir=folder)
        mlflow_stability.autolog(offline=True, rollback=mode != "watched", options=options)
    elif mode == "mixed":
        mlflow_stability.autolog(offline=True, strict=True, options=mlflow_stability.Options(journal_dir=folder))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model = DistributedDataParallel(plain) if way == "ddp" else fully_shard(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ended = time.monotonic()
    for _ in range(STEPS):
        loss = model(torch.randn(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took, ended = time.monotonic() - ended, time.monotonic()
        print(f"{took:.3f}", flush=True)
    dist.barrier()
    del model  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
