"""Trains one model on several gloo processes, and notes what the same model has in one process.

Arguments: how it is made parallel, one way after another; the folder for journals and for what is noted; options. The
processes come from torchrun's environment. Every process trains a copy of the whole model on the batches of all, with
torch alone.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import mlflow_stability

STEPS = 21
LAYERS_EVERY = 10


class Net(nn.Module):
    """Of layers whose sizes no number of processes divides."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.down = nn.Linear(12, 7)
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm(self.down(self.up(inputs).tanh())))
        return output


def fsdp2(model: Net, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),)) if mesh is None else mesh
    for item in (model.up, model.down, model):
        fully_shard(item, mesh=mesh, **options)
    return model


def hsdp(model: Net) -> nn.Module:
    return fsdp2(model, init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicas", "shards")))


TENSOR_PLAN: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def tensor_parallel(model: Net) -> nn.Module:
    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), TENSOR_PLAN)


def sequence_parallel(model: Net) -> nn.Module:
    plan = {
        "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Shard(0)),
        "norm": SequenceParallel(sequence_dim=0),
    }
    model.head.register_forward_pre_hook(lambda _, args: args[0].redistribute(placements=[Replicate()]).to_local())
    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def both(model: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))
    return fsdp2(parallelize_module(model, mesh["tensor"], TENSOR_PLAN), mesh["data"])  # type: ignore[arg-type]


def fsdp1(model: Net, **options: Any) -> nn.Module:
    policy = functools.partial(_is_linear)
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)


def _is_linear(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    return recurse or isinstance(module, nn.Linear)


WAYS: dict[str, Callable[[Net], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "fsdp2": fsdp2,
    "fsdp2_mixed": lambda model: fsdp2(
        model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ),
    "fsdp2_offload": lambda model: fsdp2(model, offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "hsdp": hsdp,
    "tensor": tensor_parallel,
    "sequence": sequence_parallel,
    "tensor_fsdp2": both,
    "fsdp1": lambda model: fsdp1(model),
    "fsdp1_orig": lambda model: fsdp1(model, use_orig_params=True),
    "zero": DistributedDataParallel,
}
SAME_BATCH = ("tensor", "sequence")
"""Ranks that split the model, and not the data."""


def optimizer_of(way: str, parameters: Any) -> Optimizer:
    if way == "zero":
        return ZeroRedundancyOptimizer(parameters, AdamW, lr=0.01)
    return SGD(parameters, lr=0.05, momentum=0.9) if way == "tensor" else AdamW(parameters, lr=0.01)


def batch_number(way: str, rank: int) -> int:
    if way in SAME_BATCH:
        return 0
    return rank // (dist.get_world_size() // 2) if way == "tensor_fsdp2" else rank


def main(ways: list[str], folder: Path, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for way in ways:
        train(way, folder / way, options)
        dist.barrier()
    dist.destroy_process_group()


def train(way: str, folder: Path, options: dict[str, Any]) -> None:
    mlflow_stability.autolog(
        offline=True,
        strict=True,
        layers_every_n_steps=LAYERS_EVERY,
        rollback=options.get("rollback", False),
        options=mlflow_stability.Options(journal_dir=folder / "journals"),
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = Net()
    made = Net()
    made.load_state_dict(whole.state_dict())
    model = WAYS[way](made)
    optimizer = optimizer_of(way, model.parameters())
    truth_optimizer = optimizer_of("tensor" if way == "tensor" else "", whole.parameters())
    numbers = sorted({batch_number(way, item) for item in range(size)})
    truth: list[dict[str, float]] = []
    for step in range(1, STEPS + 1):
        dice = [torch.Generator().manual_seed(1000 * step + number) for number in numbers]
        batches = [torch.randn(8, 6, generator=item) for item in dice]
        loss = model(batches[numbers.index(batch_number(way, rank))]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if options.get("clip"):
            if isinstance(model, FullyShardedDataParallel):
                model.clip_grad_norm_(options["clip"])
            else:
                nn.utils.clip_grad_norm_(model.parameters(), options["clip"])
        gathered = [_whole(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
        if step <= 4 and (session := mlflow_stability.current_session()) is not None:
            session._meter.ranks.poll(30.0)  # a real step takes longer than the answer of the others to the last one
        optimizer.step()
        truth.append(step_of(whole, truth_optimizer, batches, step, options.get("clip")))
        if way == "fsdp2_mixed":  # what half precision makes of a batch is another gradient than the whole model's
            truth[-1] = {"grad_norm": norm(gathered)}
    mlflow_stability.autolog(disable=True)
    if rank == 0:
        (folder / "truth.json").write_text(json.dumps(truth))


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def step_of(model: Net, optimizer: Optimizer, batches: list[Tensor], step: int, clip: float | None) -> dict[str, float]:
    """A step of the model in one process, by hand."""
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    optimizer.zero_grad()
    torch.stack([model(batch).square().mean() for batch in batches]).mean().backward()  # type: ignore[no-untyped-call]
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    values = {"grad_norm": norm(gradients.values())}
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        gradients = {
            name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
        }
        values["grad_norm_clipped"] = norm(gradients.values())
    rate = optimizer.param_groups[0]["lr"]
    unhooked(optimizer)
    moved = {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}
    if step % 10 == 0:
        weights, forces = norm(before.values()), norm(gradients.values())
        values |= {"param_norm": weights, "grad_param_ratio": forces / weights, "lr_ratio": forces * rate / weights}
        values["momentum_norm"] = norm(_momentum(optimizer))
        for layer in ("up", "down", "norm", "head"):
            own = [name for name in before if name.startswith(layer + ".")]
            values[f"param_norm@{layer}"] = norm(before[name] for name in own)
            values[f"grad_norm@{layer}"] = norm(gradients[name] for name in own)
            values[f"update_norm@{layer}"] = norm(moved[name] for name in own)
    if step % 10 == 0 or step in (2, 4):
        values["update_norm"] = norm(moved.values())
        values["update_ratio"] = norm(moved.values()) / norm(before.values())
    return values


def unhooked(optimizer: Optimizer) -> None:
    """A step that no hook of torch sees."""
    type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]


def _momentum(optimizer: Optimizer) -> list[Tensor]:
    return [
        item
        for state in optimizer.state.values()
        for name, item in state.items()
        if name in ("exp_avg", "momentum_buffer")
    ]


def norm(tensors: Any) -> float:
    return float(torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors]).norm())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1].split(","), Path(sys.argv[2]), json.loads(sys.argv[3]))
