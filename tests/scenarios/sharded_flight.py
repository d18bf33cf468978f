"""Trains on gloo processes that share weights or optimizer state out between them, under the autopilot.

Arguments: `jump`, `half` or `ahead`, the folder for journals, and what is shared out: `fsdp2` the weights, `zero` the
optimizer state. The batch of the last rank has a NaN at step 60, and the learning rate jumps at step 100; with `half`,
the rollback of the last rank breaks off half-way. With `ahead` nothing of it happens: the learning rate creeps up
until the weights grow, and nothing is rolled back. Prints, step by step, the weights as a number, the loss, the
optimizer state of this rank as a number, and with `ahead` at which share of the learning rate its shards were trained.
"""

from __future__ import annotations

import math
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

import mlflow_stability
from mlflow_stability import RollbackPolicy

POLICY = RollbackPolicy(
    snapshot_every=20, snapshot_share=1.0, healthy_after=10, rewind=20, easing_steps=40, rollback_checkpoint_interval=50
)


AHEAD = RollbackPolicy(max_rollbacks=0, act_ahead="ease", healthy_after=10)
STEPS, NAN_AT, JUMP_AT = 190, 60, 100
CREEPING_STEPS, CREEPS_FROM = 330, 150


def made(way: str, plain: nn.Sequential) -> tuple[nn.Module, Optimizer]:
    """The model and its optimizer."""
    if way == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer  # importing it warns, in every process

        model = DistributedDataParallel(plain)
        return model, ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.01)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for item in (plain[0], plain[2], plain):
        fully_shard(item, mesh=mesh)
    return plain, AdamW(plain.parameters(), lr=0.01)


def main(trouble: str, folder: Path, way: str) -> None:
    ahead = trouble == "ahead"
    mlflow_stability.autolog(rollback=AHEAD if ahead else POLICY, options=mlflow_stability.Options(journal_dir=folder))
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model, optimizer = made(way, nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)))
    dice = torch.Generator().manual_seed(rank + 1)
    for step in range(1, (CREEPING_STEPS if ahead else STEPS) + 1):
        inputs = torch.randn(16, 8, generator=dice)
        targets = inputs[:, :1].sin() + (0.0 if ahead else 0.1) * torch.randn(16, 1, generator=dice)
        if not ahead and step == NAN_AT and rank == size - 1:
            inputs[0, 0] = math.nan
        rate = 0.01 * 1.02 ** max(0, step - CREEPS_FROM) if ahead else 3.0 if JUMP_AT <= step < JUMP_AT + 15 else 0.01
        optimizer.param_groups[0]["lr"] = rate
        if step == JUMP_AT and rank == size - 1 and trouble == "half":
            break_off_half_way()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        before = values(list(model.parameters()))
        optimizer.step()
        share = share_of_rate(model, optimizer, before) if ahead else 1.0
        optimizer.zero_grad()
        weights = [parameter.full_tensor() if way == "fsdp2" else parameter for parameter in model.parameters()]
        own: Optimizer = getattr(optimizer, "optim", optimizer)
        moments = [item for state in own.state.values() for item in state.values()]
        print(step, checksum(weights), loss.item(), checksum(moments), share, flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def share_of_rate(model: nn.Module, optimizer: Optimizer, before: Tensor) -> float:
    """The learning rate that a step of AdamW has used, over the one that the script has set."""
    states = [optimizer.state[parameter] for parameter in model.parameters()]
    group, (steps, *_) = optimizer.param_groups[0], [float(state["step"]) for state in states]
    (beta1, beta2), decay = group["betas"], group["weight_decay"]
    first = values([state["exp_avg"] for state in states]) / (1 - beta1**steps)
    second = values([state["exp_avg_sq"] for state in states]) / (1 - beta2**steps)
    wanted = group["lr"] * (first / (second.sqrt() + group["eps"]) + decay * before)
    return float((before - values(list(model.parameters()))).norm() / wanted.norm())


def checksum(tensors: list[Tensor]) -> int:
    return zlib.crc32(values(tensors).numpy().tobytes())


def values(tensors: list[Tensor]) -> Tensor:
    """Those that this rank holds."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return torch.cat([tensor.detach().flatten() for tensor in local])


def break_off_half_way() -> None:
    """What goes back is changed, and then an error comes."""
    session = mlflow_stability.current_session()
    assert session is not None
    assert session._lifecycle is not None
    states = session._lifecycle.control._states
    whole = states.restore

    def half() -> None:
        whole()
        raise MemoryError("no room for the moments")

    states.restore = half


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
