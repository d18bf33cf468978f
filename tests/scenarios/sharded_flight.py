"""Trains on gloo processes that share the weights out between them, under the autopilot.

The batch of the last rank has a NaN at step 60, and the learning rate jumps at step 100; with `half`, the rollback of
the last rank breaks off half-way. Prints the weights as a number, step by step.
"""

from __future__ import annotations

import math
import sys
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mlflow_stability
from mlflow_stability import RollbackPolicy

POLICY = RollbackPolicy(
    snapshot_every=20, snapshot_share=1.0, healthy_after=10, rewind=20, easing_steps=40, checkpoint_every=50
)


STEPS, NAN_AT, JUMP_AT = 190, 60, 100


def main(trouble: str, folder: Path) -> None:
    mlflow_stability.autolog(rollback=POLICY, journal_dir=folder)
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    mesh = init_device_mesh("cpu", (size,))
    for each in (model[0], model[2], model):
        fully_shard(each, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    dice = torch.Generator().manual_seed(rank + 1)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 8, generator=dice)
        targets = inputs[:, :1].sin() + 0.1 * torch.randn(16, 1, generator=dice)
        if step == NAN_AT and rank == size - 1:
            inputs[0, 0] = math.nan
        optimizer.param_groups[0]["lr"] = 3.0 if JUMP_AT <= step < JUMP_AT + 15 else 0.01
        if step == JUMP_AT and rank == size - 1 and trouble == "half":
            break_off_half_way()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        weights = torch.cat([each.full_tensor().detach().flatten() for each in model.parameters()])
        print(step, zlib.crc32(weights.numpy().tobytes()), loss.item(), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def break_off_half_way() -> None:
    """What goes back is changed, and then an error comes."""
    session = mlflow_stability.current_session()
    assert session is not None
    assert session._lifecycle is not None
    controller = session._lifecycle.control._controller
    whole = controller.apply

    def half() -> None:
        whole()
        raise MemoryError("no room for the moments")

    controller.apply = half  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], Path(sys.argv[2]))
