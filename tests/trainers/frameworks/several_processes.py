"""Two processes that train together, as torchrun starts them: DDP and FSDP2."""

from __future__ import annotations

import gc

import torch
from torch import nn
from trainers.frameworks.raw import model_of
from trainers.script import STEPS, Script, Trainer, norm_of


def together(script: Script, *, sharded: bool) -> None:
    script.autolog()
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)) if sharded else model_of()
    model = _sharded(plain) if sharded else nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for step in range(STEPS):
        # Only one of the two gets a broken batch.
        inputs = script.batch(torch.randn(8, 6), step) if rank == 0 else torch.randn(8, 6)
        loss = nn.functional.mse_loss(model(inputs), torch.ones(8, 1))
        optimizer.zero_grad()
        loss.backward()
        norm = norm_of(model.parameters())
        if sharded:
            squares = torch.tensor(norm**2, dtype=torch.float64)
            torch.distributed.all_reduce(squares)
            norm = squares.sqrt().item()
        script.step(model, loss, norm)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    script.end(model)
    torch.distributed.barrier()
    del model  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
    gc.collect()
    torch.distributed.destroy_process_group()


def _sharded(model: nn.Sequential) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


TRAINERS = [
    Trainer("DDP", lambda script: together(script, sharded=False), processes=2),
    Trainer("FSDP2", lambda script: together(script, sharded=True), processes=2, split=True),
]
