"""Trains a sharded model on gloo processes with the autopilot, and prints how many reductions each step began.

FSDP gathers and scatters; what reduces is ours alone. Argument: a folder for the journal.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mlflow_stability

STEPS = 26


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    options = mlflow_stability.Options(journal_dir=folder)
    mlflow_stability.autolog(offline=True, strict=True, rollback=True, options=options)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for item in (model[0], model[2], model):
        fully_shard(item, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    reduce, count = dist.all_reduce, [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        return reduce(*arguments, **options)

    dist.all_reduce = counted
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        norm = torch.cat([parameter.grad.full_tensor().flatten() for parameter in model.parameters()]).norm()  # type: ignore[union-attr,operator]
        if (session := mlflow_stability.current_session()) is not None:
            session._meter.ranks.poll(30.0)  # a real step takes longer than the answer of the others to the last one
        optimizer.step()
        print(step, count[0], norm.item(), flush=True)
        count[0] = 0
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
