"""Trains a sharded model on gloo processes and notes its whole state, step by step; or restores it and compares.

Arguments: `save` or `restore`; how the model is split: `fsdp2`, `hsdp`, `tensor_fsdp2`, or `whole`: not at all; a
folder for journals and notes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import mlflow_stability
from mlflow_stability import RollbackPolicy

STEPS = 60
POLICY = RollbackPolicy(snapshot_every=10, snapshot_share=1.0, healthy_after=5, rollback_checkpoint_interval=20)


class Net(nn.Module):
    """Of layers whose sizes no number of processes divides, one smaller than there are processes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.down = nn.Linear(12, 7)
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(7, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm(self.down(self.up(inputs).tanh())))
        return output


def split(way: str, model: Net) -> nn.Module:
    if way == "whole":
        return model
    size = dist.get_world_size()
    if way == "fsdp2":
        mesh = init_device_mesh("cpu", (size,))
    else:
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "other"))
    if way == "tensor_fsdp2":
        parallelize_module(model, mesh["other"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = mesh["data"]
    for item in (model.up, model.down, model):
        fully_shard(item, mesh=mesh)
    return model


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Every tensor of the state as no process holds it, by the names of parameters."""
    names = {id(item): name for name, item in model.named_parameters()}
    by_name: dict[str, Any] = {f"model/{name}": whole(item) for name, item in model.named_parameters()}
    by_name |= {f"model/{name}": whole(item) for name, item in model.named_buffers()}
    for parameter, state in optimizer.state.items():
        by_name |= {f"optimizer/{names[id(parameter)]}/{key}": whole(item) for key, item in state.items()}
    return by_name


def whole(tensor: Any) -> Tensor:
    output: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return output.detach().clone()


def made(way: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = split(way, Net())
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def save(way: str, folder: Path) -> None:
    options = mlflow_stability.Options(journal_dir=folder / "journals")
    mlflow_stability.autolog(offline=True, strict=True, rollback=POLICY, silent=True, options=options)
    model, optimizer = made(way, 0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    states = {}
    for step in range(1, STEPS + 1):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + dist.get_rank() % 2))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        scheduler.step()
        states[step] = whole_state(model, optimizer)
        if step == 2 * POLICY.rollback_checkpoint_interval - 1 and dist.get_rank() == 0:
            wait_for_checkpoint(folder)  # where the disk is busy, the next one would not be taken
    dist.barrier()
    mlflow_stability.autolog(disable=True)
    if dist.get_rank() == 0:
        torch.save(states, folder / "states.pt")


def wait_for_checkpoint(folder: Path) -> None:
    until = time.monotonic() + 60.0
    while not list(folder.glob("journals/checkpoints/*/rollback_ckpt-*")):
        assert time.monotonic() < until, "no checkpoint was written"
        time.sleep(0.01)


def restore(way: str, folder: Path) -> None:
    (directory,) = (folder / "journals" / "checkpoints").iterdir()
    model, optimizer = made(way, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    resumed = mlflow_stability.restore(model, optimizer, schedulers=[scheduler], directory=directory)
    expected = torch.load(folder / "states.pt")[resumed.step]
    result = whole_state(model, optimizer)
    differ = [name for name in expected if not torch.equal(result.get(name, torch.empty(0)), expected[name])]
    assert sorted(result) == sorted(expected)
    assert not differ, differ
    assert scheduler.last_epoch == resumed.step
    print(resumed.step, len(result), "equal;", *resumed.messages)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    {"save": save, "restore": restore}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
