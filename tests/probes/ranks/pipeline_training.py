"""Trains a model on gloo processes as a pipeline of two stages, and notes what the whole model would have.

Arguments: the folder for journals and for what is noted; the largest gradient norm of each stage, 0 for no clipping;
`watched` or `autopilot`; the rank that measures no gradients from step 12 on, -1 for none; what several processes do
with a stage: `alone`, where each has one, `ddp`, `fsdp2` or `tensor`.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability
from mlflow_stability.probes import model_discovery
from mlflow_stability.probes.ranks import rank_watch

STEPS, MICRO_BATCHES, FAILS_AT = 21, 4, 12


def whole_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 1))


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def joined(way: str, part: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    """A stage that several processes have together."""
    if way == "ddp":
        # Without the option torch 2.13 cannot run DDP in a pipeline: it counts parameters once for each micro-batch.
        return DistributedDataParallel(part, process_group=mesh.get_group(), find_unused_parameters=True)
    if way == "fsdp2":
        for module in part:
            if isinstance(module, nn.Linear):
                fully_shard(module, mesh=mesh)
        return fully_shard(part, mesh=mesh)
    if len(part) == 2:
        return parallelize_module(part, mesh, {"0": ColwiseParallel(output_layouts=Replicate())})
    return parallelize_module(part, mesh, {name: RowwiseParallel(input_layouts=Replicate()) for name in ("2", "4")})


def main(folder: Path, limit: float, mode: str, fails: int, way: str) -> None:
    torch.set_num_threads(1)
    options = mlflow_stability.Options(journal_dir=folder / "journals")
    mlflow_stability.autolog(offline=True, strict=fails < 0, rollback=mode == "autopilot", options=options)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("stages", "together"))
    number, mine = mesh.get_coordinate() or ()
    whole, layers = whole_model(), whole_model()
    own = layers[:2] if number == 0 else layers[2:]
    part = own if way == "alone" else joined(way, own, mesh["together"])
    stage = PipelineStage(part, number, 2, torch.device("cpu"), group=mesh.get_group("stages"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=0.01)
    truth_optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    truth: list[dict[str, float]] = []
    looked = looks_through_objects()
    for step in range(1, STEPS + 1):
        batches = [batch_of(step, item) for item in range(2 if way in ("ddp", "fsdp2") else 1)]
        inputs, targets = batches[min(mine, len(batches) - 1)]
        optimizer.zero_grad()
        schedule.step(inputs) if number == 0 else schedule.step(target=targets)
        if limit:
            nn.utils.clip_grad_norm_(part.parameters(), limit)
        if dist.get_rank() == fails and step == FAILS_AT:
            fail()
        if step <= 4 and (session := mlflow_stability.current_session()) is not None:
            session._meter.ranks.poll(30.0)  # a real step takes longer than the answer of the others to the last one
        optimizer.step()
        print(step, flush=True)
        if step == FAILS_AT - 1:
            looked.clear()
        truth.append(step_of(whole, truth_optimizer, batches, limit))
    assert not looked, "all that is found in Python's objects is found at the first steps"
    dist.barrier()
    mlflow_stability.autolog(disable=True)
    if dist.get_rank() == 0:
        (folder / "truth.json").write_text(json.dumps(truth))
    dist.barrier()
    del part, stage, schedule
    gc.collect()  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
    dist.destroy_process_group()


def batch_of(step: int, number: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(step + 1000 * number)
    return torch.randn(8, 6, generator=dice), torch.randn(8, 1, generator=dice)


def step_of(
    model: nn.Sequential, optimizer: Any, batches: list[tuple[Tensor, Tensor]], limit: float
) -> dict[str, float]:
    """A step of the whole model, by hand."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    loss = torch.stack([loss_of(model(inputs), targets) for inputs, targets in batches]).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in model.parameters()]
    values = {"loss": loss.item(), "grad_norm": norm(gradients), "param_norm": norm(before)}
    if limit:
        for stage in (model[:2], model[2:]):
            nn.utils.clip_grad_norm_(stage.parameters(), limit)
    type(optimizer).step.__wrapped__(optimizer)  # a step that no hook of torch sees
    moved = [tensor.detach() - old for tensor, old in zip(model.parameters(), before, strict=True)]
    return {**values, "update_norm": norm(moved)}


def norm(tensors: Any) -> float:
    return float(torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors]).norm())


def looks_through_objects() -> list[tuple[type, ...]]:
    """Each look through all objects of this process, which takes longer than a step."""
    rows: list[tuple[type, ...]] = []
    walk = model_discovery._walk

    def noted(kinds: tuple[type, ...]) -> list[list[Any]]:
        rows.append(kinds)
        return walk(kinds)

    model_discovery._walk = noted
    return rows


def fail() -> None:
    """As an error of ours would, in what measures gradients."""

    def broken(*_: object) -> None:
        raise MemoryError("no room for the squares")

    rank_watch.local_squares = broken  # type: ignore[assignment]


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
