"""Trains on two gloo processes; run by torchrun's environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

Arguments: none, or a port for metrics and a file; then the training is not over before there is that file.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from waiting import wait_until

import mlflow_stability

mlflow_stability.autolog(strict=True, prometheus_port=int(sys.argv[1]) if len(sys.argv) > 1 else None)


def main() -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(15):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
        if rank == 0:
            print(loss.item(), norm.item(), flush=True)
        optimizer.step()
        optimizer.zero_grad()
    if len(sys.argv) > 2:
        wait_until(Path(sys.argv[2]).exists, 180)  # the port is open until all is delivered of a training that is over
    # One that takes its group down while the other is still in it may be aborted by gloo's own threads.
    torch.distributed.barrier()
    del model  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
    gc.collect()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
