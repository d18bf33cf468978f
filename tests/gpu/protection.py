"""What the autopilot does on a device: skipped steps, snapshots, rollbacks, and the memory that it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from gpu.check import Bench, Check, NotHereError, Outcome
from gpu.trainings import VARIANTS, Training
from recovery.guarded_training import differences, picture
from scenarios.flying import QUICK, flying
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from mlflow_stability.probes.tensor_sums import copy_budget
from mlflow_stability.recovery.state.restore import EVERYTHING, restore_state
from mlflow_stability.recovery.state.state_copy import copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts

BROKEN = 14
"""The step whose batch holds a NaN."""
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "SGD, fused": lambda given: SGD(given, lr=0.1, momentum=0.9, fused=True),
    "AdamW, fused": lambda given: AdamW(given, lr=0.01, fused=True),
    "AdamW, foreach": lambda given: AdamW(given, lr=0.01, foreach=True),
    "Adam, capturable": lambda given: Adam(given, lr=0.01, capturable=True),
}
SNAPSHOT_WAITS = 5.0
"""Milliseconds that a snapshot may hold up the host, where the device is behind by a hundred."""


def skipping_of(name: str) -> Check:
    """A step on a NaN batch changes nothing; fused optimizers decide by `found_inf`, without waiting."""

    def run(bench: Bench) -> Outcome:
        if "capturable" in name and not bench.is_cuda:
            raise NotHereError("capturable optimizers need CUDA")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(bench.device)
        optimizer = OPTIMIZERS[name](model.parameters())
        batches = torch.randn(BROKEN + 4, 6, 4, device=bench.device)
        batches[BROKEN, 2, 1] = float("nan")
        unchanged = []
        with flying(bench.folder, guard=True) as flown:
            for step, inputs in enumerate(batches):
                before = picture(model, optimizer)
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                bench.wait()
                if bench.is_cuda and "fused" in name and step >= 12:
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    optimizer.step()
                finally:
                    if bench.is_cuda:
                        torch.cuda.set_sync_debug_mode("default")
                if not differences(before, picture(model, optimizer)):
                    unchanged.append(step)
        skipped = [event.step for event in flown.events("step_skipped")]
        return Outcome(f"unchanged by steps {unchanged}, reported {skipped}", unchanged == [BROKEN] and bool(skipped))

    return Check(f"a broken step is skipped: {name}", run, needs_cuda="capturable" in name)


def a_snapshot_waits_for_nothing(bench: Bench) -> Outcome:
    """The copies are put into the stream, and the host goes on while the device works."""
    training = Training(bench, VARIANTS[0])
    parts = TrainingParts((training.optimizer,), (training.model,))
    for _ in range(3):
        training.step()
    copy_state(parts, 3).nbytes  # noqa: B018 - pinned memory is made at the first one
    bench.wait()
    if bench.is_cuda:
        torch.cuda._sleep(200_000_000)
    began = time.perf_counter()
    copy = copy_state(parts, 3)
    took = (time.perf_counter() - began) * 1e3
    bench.wait()
    figure = f"{copy.nbytes / 1e6:.0f} MB, host held up {took:.1f} ms"
    return Outcome(figure, took < SNAPSHOT_WAITS or not bench.is_cuda)


def a_snapshot_is_taken_beside_the_training(bench: Bench) -> Outcome:
    """Weights change in place while a snapshot of 128 MB is on its way: it holds what they were, and delays nothing."""
    size = (1 << 20) if bench.quick else 1 << 25
    model = nn.ParameterList([torch.full((size,), 1.0, device=bench.device)])
    parts = TrainingParts((), (model,))
    copy_state(parts, 1).wait()
    copy = copy_state(parts, 2)
    with torch.no_grad():
        for _ in range(20):
            model[0].add_(1)
    copy.wait()
    bench.wait()
    (kept,) = copy.tensors.values()
    whole, held_up = bool((kept == 1).all()), sum(item.device_seconds() for item in copy.copies) * 1e3
    return Outcome(
        f"{'whole' if whole else 'torn'}; training held up {held_up:.2f} ms", whole and held_up < SNAPSHOT_WAITS
    )


def a_state_comes_back_bit_for_bit(bench: Bench) -> Outcome:
    """Five steps, back, and the same five steps again: the same losses and weights."""
    training = Training(bench, VARIANTS[0])
    parts = TrainingParts((training.optimizer,), (training.model,))
    for _ in range(4):
        training.step()
    copy = copy_state(parts, 4)
    before = picture(training.model, training.optimizer)
    once = [float(training.step()) for _ in range(5)]
    restore_state(copy, parts, EVERYTHING)
    left = differences(before, picture(training.model, training.optimizer))
    again = [float(training.step()) for _ in range(5)]
    return Outcome(f"{len(left)} tensors differ; losses {'equal' if once == again else 'differ'}", not left)


def a_rollback_saves_the_training(bench: Bench) -> Outcome:
    """A learning rate that jumps is answered by a rollback, and the loss is finite at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(bench.device)
    optimizer = AdamW(model.parameters(), lr=0.01)
    last = math.nan
    with flying(bench.folder, rollback=replace(QUICK, snapshot_budget=64 * 2**20)) as flown:
        for step in range(420):
            optimizer.param_groups[0]["lr"] = 3.0 if 200 <= step < 215 else 0.01
            inputs = torch.randn(32, 8, device=bench.device)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :1].sin() + inputs[:, 1:2])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            last = float(loss.detach())
    rollbacks = [event.step for event in flown.events("rollback")]
    return Outcome(f"rolled back at {rollbacks}; last loss {last:.3g}", bool(rollbacks) and last < 1)


def memory_stays_within_its_budget(bench: Bench) -> Outcome:
    """The peak over 120 steps of everything that is measured and kept, to that of bare steps.

    Measurements may take the budget, and snapshots as much again until they have left the device.
    """
    peaks = []
    for watched in (False, True):
        training = Training(bench, VARIANTS[0])
        training.step()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        if watched:
            with flying(bench.folder, rollback=True, layers_every_n_steps=10, attention_every_n_steps=50):
                _steps(training, 120)
        else:
            _steps(training, 120)
        peaks.append(torch.cuda.max_memory_allocated())
        del training
    more, budget = peaks[1] - peaks[0], 2 * copy_budget(bench.device)
    return Outcome(f"{more / 2**20:.0f} MB of {budget / 2**20:.0f} MB", more <= budget)


def a_full_device_is_survived(bench: Bench) -> Outcome:
    """All memory but a few megabytes is taken: the training goes on, and what of ours does not fit is left out."""
    training = Training(bench, VARIANTS[0])
    _steps(training, 3)
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    filler = torch.empty(max(0, free - 48 * 2**20), dtype=torch.uint8, device=bench.device)
    with flying(bench.folder, strict=False, rollback=True, layers_every_n_steps=10) as flown:
        _steps(training, 60)
        off = dict(flown.session.parts_off)
    retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    del filler
    torch.cuda.empty_cache()
    return Outcome(f"60 steps went on; off: {', '.join(off) or 'nothing'}; {retries} retries of the allocator")


def _steps(training: Training, count: int) -> None:
    for _ in range(count):
        training.step()
    training.bench.wait()


CHECKS = (
    *map(skipping_of, OPTIMIZERS),
    Check("a snapshot waits for nothing", a_snapshot_waits_for_nothing),
    Check("a snapshot is taken beside the training", a_snapshot_is_taken_beside_the_training),
    Check("a state comes back bit for bit", a_state_comes_back_bit_for_bit),
    Check("a rollback saves the training", a_rollback_saves_the_training),
    Check("memory stays within its budget", memory_stays_within_its_budget, needs_cuda=True),
    Check("a full device is survived", a_full_device_is_survived, needs_cuda=True),
)
