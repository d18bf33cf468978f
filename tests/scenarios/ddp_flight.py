"""Trains on two gloo processes under the autopilot, and prints what happened to the weights, step by step.

Which trouble is the argument: `nan` in the batch of the last rank alone, `jump` of the learning rate, `fail`: the
guard of the last rank breaks down; `lost` and `half`: the learning rate jumps, and the last rank cannot go back, or
breaks off half-way; `asked`: the last rank asks to skip a step, and all to go back; `stop`: a loss that `stop_on` has,
on all ranks or with `stop-last` on the last one, and with `bare` without anything else of the autopilot. `smaller`: a
spike, and later a NaN in the batch of the last rank, with options that make steps smaller. `buffers`: a NaN in its
batch, of a model with a batch norm, and with a buffer that the script writes after each step. `changed`: from some step
on all targets are other ones.
"""

from __future__ import annotations

import gc
import math
import sys
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability
from mlflow_stability import RollbackPolicy, TrainingDiverged
from mlflow_stability.session import training_output
from mlflow_stability.session.autopilot.autopilot import Autopilot

STEPS = 260
TROUBLE = 150
POLICY = RollbackPolicy(snapshot_every=20, snapshot_share=1.0, healthy_after=10, rewind=20, easing_steps=40)
SMALLER = RollbackPolicy(
    max_rollbacks=0, skip_gradients_above=None, reset_at_spike=True, reset_warm_up=20, cut_learning_rate=0.1
)


def main(trouble: str, folder: Path) -> None:
    training_output.HELD_SECONDS = 60.0  # a busy machine takes longer than usual from a finding to the rollback
    stop_on = ("grad_norm>1e9", "loss>50") if "stop" in trouble else ()
    options = mlflow_stability.Options(journal_dir=folder)
    mlflow_stability.autolog(
        rollback=SMALLER if trouble == "smaller" else "bare" not in trouble and POLICY,
        stop_on=stop_on,
        strict=trouble not in ("fail", "lost", "half"),
        options=options,
    )
    torch.distributed.init_process_group("gloo")
    has_diverged = False
    try:
        train(trouble, torch.distributed.get_rank())
    except TrainingDiverged as diverged:
        print(f"TrainingDiverged: {diverged}", file=sys.stderr)
        has_diverged = True
    finally:
        # One that takes its group down while the other is still in it, or never does, may be aborted by gloo's threads.
        torch.distributed.barrier()
        gc.collect()  # torch may deadlock where a DDP outlives its group: https://github.com/pytorch/pytorch/issues/56297
        torch.distributed.destroy_process_group()
    if has_diverged:
        sys.exit(1)


def train(trouble: str, rank: int) -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    if trouble == "buffers":
        inner.append(nn.BatchNorm1d(1)).register_buffer("written", torch.zeros(()))
    model = DistributedDataParallel(inner, broadcast_buffers=trouble != "buffers")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    dice = torch.Generator().manual_seed(rank + 1)
    for step in range(1, STEPS + 1):
        inputs = torch.randn(16, 8, generator=dice)
        targets = inputs[:, :1].sin() + 0.1 * torch.randn(16, 1, generator=dice)
        if trouble == "changed" and step >= TROUBLE:
            targets = targets + 10
        if step == {"nan": TROUBLE, "buffers": TROUBLE, "smaller": TROUBLE + 50}.get(trouble) and rank:
            inputs[0, 0] = math.nan
        if trouble in ("jump", "lost", "half"):
            optimizer.param_groups[0]["lr"] = 3.0 if TROUBLE <= step < TROUBLE + 15 else 0.01
        if step == TROUBLE and rank and trouble in BREAKS:
            BREAKS[trouble](pilot())
        if trouble == "asked":
            ask(step, rank)
        huge = "stop" in trouble and step == TROUBLE and (rank or "last" not in trouble)
        huge = huge or (trouble == "smaller" and step == TROUBLE)
        loss = nn.functional.mse_loss(model(inputs), targets) * (1e5 if huge else 1)
        loss.backward()
        try:
            optimizer.step()
        except TrainingDiverged:
            print(step, checksum(model), loss.item(), flush=True)
            raise
        optimizer.zero_grad()
        print(step, checksum(model), loss.item(), flush=True)
        if trouble == "buffers":
            inner.get_buffer("written").add_(1)
    if trouble == "buffers":
        print(inner.get_buffer("written").item(), inner[-1].num_batches_tracked.item(), 0, flush=True)


def checksum(model: nn.Module) -> int:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return zlib.crc32(weights.numpy().tobytes())


def pilot() -> Autopilot:
    session = mlflow_stability.current_session()
    assert session is not None
    assert session._lifecycle is not None
    return session._lifecycle.control  # type: ignore[no-any-return]


def ask(step: int, rank: int) -> None:
    session = mlflow_stability.current_session()
    assert session is not None
    if step == TROUBLE and rank:
        session.skip_next()
    if step == TROUBLE + 20:
        assert session.rollback()


def break_the_guard(flown: Autopilot) -> None:
    """As an error of ours would, in the middle of its work."""
    flown._modifier._limits = None  # type: ignore[assignment]


def lose_the_states(flown: Autopilot) -> None:
    flown._states.ring.clear()


def break_off_half_way(flown: Autopilot) -> None:
    """What goes back is changed, and then an error comes."""
    whole = flown._states.restore

    def half() -> None:
        whole()
        raise MemoryError("no room for the moments")

    flown._states.restore = half  # type: ignore[method-assign]


BREAKS = {"fail": break_the_guard, "lost": lose_the_states, "half": break_off_half_way}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
