from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from probes.pacing import pacing
from torch import nn
from torch.optim import LBFGS, SGD

from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.performance.step_timing import Mark, StepClock, StepEvents, events_of
from mlflow_stability.probes.probe import StepView

Told = dict[int, dict[str, float]]


class Drive:
    """Calls the clock as hooks do, with times that a test says."""

    def __init__(self, events: StepEvents | None = None, device: str = "cpu") -> None:
        self.time = 100.0
        self.own = 0.0
        self.step = 0
        self.optimizer = SGD([torch.zeros(1, device=device, requires_grad=True)], lr=0.1)
        self.clock = StepClock(lambda: self.own, now=lambda: self.time, events_for=lambda device: events)
        self.told: Told = {}

    def wait(self, seconds: float) -> None:
        self.time += seconds

    def micro_batch(self, data: float, forward: float, backward: float, seen: bool = True) -> None:
        self.wait(data)
        if seen:
            self.clock.mark(Mark.FORWARD_BEGAN)
        self.wait(forward)
        if seen:
            self.clock.mark(Mark.FORWARD_ENDED)
        self.wait(0.5)  # the loss function
        self.clock.mark(Mark.BACKWARD_BEGAN)
        self.wait(backward)
        self.clock.mark(Mark.BACKWARD_ENDED)

    def end(self, optimizer: float, own: float = 0.0) -> None:
        self.step += 1
        view = StepView(self.optimizer, self.step, Layers())
        self.wait(0.25)  # clipping
        if self.clock.due(self.step):
            self.clock.before_step(view)
        self.clock.mark(Mark.STEP_BEGAN)
        self.wait(optimizer)
        self.clock.mark(Mark.STEP_ENDED)
        self.own += own
        self.clock.mark(Mark.CAPTURE_ENDED)
        for block in self.clock.blocks(self.step):
            assert isinstance(block.values, tuple)
            self.told.setdefault(self.step, {}).update(zip(map(str, block.signals), block.values, strict=True))


def test_the_mean_time_of_each_part_is_reported_every_ten_steps() -> None:
    drive = Drive()
    for number in range(20):
        drive.micro_batch(data=1 + number % 2, forward=2, backward=4, seen=number > 0)
        drive.end(optimizer=8, own=0.125)
    assert list(drive.told) == [10, 20]
    parts = {"data_time": 1.5, "forward_time": 2, "backward_time": 4, "optimizer_time": 8, "own_time": 0.125}
    assert drive.told[20] == parts
    assert drive.told[10] == {**parts, "data_time": pytest.approx(14 / 9)}  # of the nine that were seen


def test_the_parts_of_all_micro_batches_are_added_up() -> None:
    drive = Drive()
    for _ in range(20):
        drive.micro_batch(data=1, forward=2, backward=4)
        drive.micro_batch(data=3, forward=2, backward=4)
        drive.end(optimizer=1)
    assert drive.told[20] == {
        "data_time": 4,
        "forward_time": 4,
        "backward_time": 8,
        "optimizer_time": 1,
        "own_time": 0,
    }


def test_evaluation_is_no_waiting_for_data() -> None:
    drive = Drive()
    for _ in range(20):
        drive.wait(50)
        drive.clock.mark(Mark.EVALUATED)
        drive.micro_batch(data=1, forward=2, backward=4)
        drive.end(optimizer=1)
    assert drive.told[20]["data_time"] == 1


def test_parts_that_were_not_observed_are_not_reported() -> None:
    drive = Drive()
    for _ in range(10):
        drive.micro_batch(data=1, forward=2, backward=4, seen=False)
        drive.end(optimizer=1)
    assert set(drive.told[10]) == {"backward_time", "optimizer_time", "own_time"}


def test_a_closure_that_is_evaluated_again_is_the_optimizers_time() -> None:
    drive = Drive()
    for _ in range(10):
        drive.micro_batch(data=1, forward=2, backward=4)
        drive.step += 1
        view = StepView(drive.optimizer, drive.step, Layers())
        drive.clock.before_step(view)
        drive.clock.mark(Mark.STEP_BEGAN)
        drive.micro_batch(data=0, forward=2, backward=4)
        drive.clock.mark(Mark.STEP_ENDED)
        drive.clock.mark(Mark.CAPTURE_ENDED)
        for block in drive.clock.blocks(drive.step):
            drive.told.setdefault(drive.step, {}).update(zip(map(str, block.signals), block.values, strict=True))
    assert drive.told[10]["forward_time"] == 2
    assert drive.told[10]["optimizer_time"] == 6.5


@dataclass
class FakeEvent:
    """What an event of a device's stream does, with a device that works for half as long as the host waits."""

    drive: Drive
    passes: bool = True
    when: float = 0.0

    def record(self) -> None:
        self.when = self.drive.time

    def query(self) -> bool:
        return self.passes

    def elapsed_time(self, end_event: FakeEvent) -> float:
        return (end_event.when - self.when) / 2 * 1000


def on_a_device(passes: bool = True, micro_batches: int = 2, steps: int = 20) -> tuple[Drive, list[int]]:
    made = [0]

    def new_event() -> FakeEvent:
        made[-1] += 1
        return FakeEvent(drive, passes)

    drive = Drive(StepEvents(new_event), device="meta")
    for _ in range(steps):
        for _ in range(micro_batches):
            drive.micro_batch(data=1, forward=2, backward=4)
        drive.end(optimizer=8)
        made.append(0)
    return drive, made


def test_on_a_device_one_step_of_ten_is_measured_by_its_own_clock() -> None:
    drive, made = on_a_device()
    assert drive.told[20] == {
        "data_time": pytest.approx(1),
        "forward_time": pytest.approx(2),
        "backward_time": pytest.approx(4),
        "optimizer_time": pytest.approx(4),
        "own_time": 0,
    }
    assert [step for step, count in enumerate(made, start=1) if count > 1] == [8, 18]


def test_a_device_that_is_not_that_far_is_not_waited_for() -> None:
    drive, _ = on_a_device(passes=False)
    assert drive.told[20] == {"own_time": 0}


def test_timing_of_a_step_with_a_thousand_micro_batches_is_dropped_as_a_whole() -> None:
    drive, made = on_a_device(micro_batches=100)
    assert drive.told[10] == {"own_time": 0}
    assert sum(made) == 2 * 256


def test_where_a_device_tells_no_time_the_times_are_called_the_hosts() -> None:
    drive = Drive(device="meta")
    for _ in range(20):
        drive.micro_batch(data=1, forward=2, backward=4)
        drive.end(optimizer=8)
    assert drive.told[20]["forward_time@host"] == 2
    assert "forward_time" not in drive.told[20]


def test_events_are_for_devices_that_have_them() -> None:
    assert events_of(torch.device("cpu")) is None
    assert events_of(torch.device("mps")) is None


class Slow(nn.Module):
    """Takes its time forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return _SlowBackward.apply(x * self.weight)  # type: ignore[no-any-return]


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(0.004)
        return gradient


def test_in_a_training_each_part_takes_at_least_what_the_script_spends_in_it() -> None:
    model = Slow()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pacing() as paced:
        for step in range(1, 21):
            time.sleep(0.003)
            model(torch.ones(1)).sum().backward()
            if step == 10:
                began = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
        took = time.perf_counter() - began  # the ten steps whose mean is reported last, and the end of the one before
        values = paced.told("data_time", "forward_time", "backward_time", "optimizer_time", "own_time")
    means = {name: values[-1] for name, values in values.items()}
    assert means["data_time"][1] >= 0.003
    assert means["forward_time"][1] >= 0.002
    assert means["backward_time"][1] >= 0.004
    assert means["own_time"][1] > 0
    parts = sum(means[name][1] for name in ("data_time", "forward_time", "backward_time", "optimizer_time"))
    assert parts <= took / 10


def test_a_step_with_a_closure_is_split_as_well() -> None:
    model = Slow()
    optimizer = LBFGS(model.parameters(), lr=1e-3, max_iter=3)
    calls: list[int] = []

    def closure() -> torch.Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = model(torch.ones(1)).square().sum()
        loss.backward()
        return loss

    with pacing() as paced:
        for _ in range(11):
            optimizer.step(closure)  # type: ignore[arg-type]
        values = paced.told("forward_time", "optimizer_time")
    again = len(calls) / 11 - 1
    assert again >= 1
    assert values["optimizer_time"][0][1] >= 0.006 * again * 0.8
