"""Trains on gloo processes, of which the one before the last is in trouble; prints the weights as a number.

Arguments: `nan` in the batch of that rank at step 13, or `slow` loading of its data at each step from 20 on that ranks
compare, or `once`: targets that are too large at step 61, and one slow loading at step 75; the folder for the journal;
whether the autopilot is on. It is slow for much longer than a busy machine keeps a rank waiting.
"""

from __future__ import annotations

import gc
import math
import sys
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability

STEPS = {"nan": 30, "slow": 150, "once": 90}
NAN_AT, SLOW_FROM, COMPARED_EVERY = 13, 20, 10
SPIKE_AT, SLOW_AT, SLOW_SECONDS = 61, 75, 3.0


def main(trouble: str, folder: Path, mode: str) -> None:
    torch.set_num_threads(1)
    options = mlflow_stability.Options(journal_dir=folder)
    mlflow_stability.autolog(offline=True, strict=True, rollback=mode == "autopilot", options=options)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model: nn.Module = DistributedDataParallel(plain)
    if trouble == "nan":
        model = plain = plain.requires_grad_()
        mesh = init_device_mesh("cpu", (size,))
        for item in (plain[0], plain[2], plain):
            fully_shard(item, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, STEPS[trouble] + 1):
        rows = 64 if trouble == "once" else 4
        inputs = torch.randn(rows, 6, generator=torch.Generator().manual_seed(100 * step + rank))
        target = 0.0
        in_trouble = rank == size - 2
        if in_trouble and trouble == "nan" and step == NAN_AT:
            inputs[0, 0] = math.nan
        if in_trouble and trouble == "slow" and step >= SLOW_FROM and step % COMPARED_EVERY == 0:
            time.sleep(1.0)
        if in_trouble and trouble == "once" and step == SPIKE_AT:
            target = 1000.0
        if in_trouble and trouble == "once" and step == SLOW_AT:
            time.sleep(SLOW_SECONDS)
        optimizer.zero_grad()
        (model(inputs) - target).square().mean().backward()
        optimizer.step()
        whole = [
            parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
            for parameter in model.parameters()
        ]
        print(zlib.crc32(torch.cat([tensor.detach().flatten() for tensor in whole]).numpy().tobytes()), flush=True)
    dist.barrier()
    del model  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
