"""Trains on two gloo processes under the autopilot, and prints what happened to the weights, step by step.

Which trouble is the argument: `nan` in the batch of the last rank alone, `jump` of the learning rate, or `fail`: the
guard of the last rank breaks down.
"""

from __future__ import annotations

import math
import sys
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability
from mlflow_stability import RollbackPolicy

STEPS = 260
TROUBLE = 150
POLICY = RollbackPolicy(snapshot_every=20, snapshot_share=1.0, healthy_after=10, rewind=20, easing_steps=40)


def main(trouble: str, folder: Path) -> None:
    mlflow_stability.autolog(rollback=POLICY, journal_dir=folder, strict=trouble != "fail")
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    dice = torch.Generator().manual_seed(rank + 1)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 8, generator=dice)
        targets = inputs[:, :1].sin() + 0.1 * torch.randn(16, 1, generator=dice)
        if trouble == "nan" and step == TROUBLE and rank:
            inputs[0, 0] = math.nan
        if trouble == "jump":
            optimizer.param_groups[0]["lr"] = 3.0 if TROUBLE <= step < TROUBLE + 15 else 0.01
        if trouble == "fail" and step == TROUBLE and rank:
            break_the_guard()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        weights = torch.cat([each.detach().flatten() for each in model.parameters()])
        print(step, zlib.crc32(weights.numpy().tobytes()), loss.item(), flush=True)
    # One that takes its group down while the other is still in it may be aborted by gloo's own threads.
    torch.distributed.barrier()
    del model
    torch.distributed.destroy_process_group()


def break_the_guard() -> None:
    """As an error of ours would, in the middle of its work."""
    session = mlflow_stability.current_session()
    assert session is not None
    assert session._flight is not None
    session._flight.pilot._gates._limits = None  # type: ignore[assignment]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
