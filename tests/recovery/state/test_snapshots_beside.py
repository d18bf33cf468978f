"""Snapshots of a device that is far behind the host, and whose training goes on meanwhile, played by a stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from probes.step.late_device import LateDevice
from torch import Tensor, nn

from mlflow_stability.recovery.state import host_copy
from mlflow_stability.recovery.state.host_copy import SMALLEST_STAGED, HostCopies
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts

NUMBERS = SMALLEST_STAGED // 4


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateDevice]:
    late = LateDevice()
    late.install(monkeypatch)
    yield late
    host_copy._stream_beside.cache_clear()


class Training:
    """Weights on the device, and an update in place."""

    def __init__(self, device: LateDevice) -> None:
        self.weights = [device.tensor(torch.full((NUMBERS,), 1.0)), device.tensor(torch.full((NUMBERS,), 2.0))]
        self.model = nn.Module()
        for number, item in enumerate(self.weights):
            self.model.register_buffer(f"weight_{number}", item)

    def update(self) -> None:
        for weight in self.weights:
            weight.as_subclass(Tensor).add_(10)

    def copy(self, budget: int | None = None) -> StateCopy:
        return copy_state(TrainingParts((), (self.model,)), 1, budget)


def must_be_as_before(copy: StateCopy) -> None:
    copy.wait()
    assert [float(tensor.min()) for tensor in copy.tensors.values()] == [1, 2]
    assert [float(tensor.max()) for tensor in copy.tensors.values()] == [1, 2]
    assert copy.not_finite() == frozenset()


def test_what_the_training_changes_meanwhile_is_not_in_the_snapshot(device: LateDevice) -> None:
    training = Training(device)
    copy = training.copy()
    training.update()
    device.finish()
    assert not copy.copies[0].have_arrived()
    assert device.waits == 0
    training.update()
    must_be_as_before(copy)


def test_the_stream_of_the_training_transfers_no_part_of_the_snapshot(device: LateDevice) -> None:
    Training(device).copy()
    (beside,) = device.beside
    assert (len(beside.waiting), len(device.waiting)) == (2, 1)  # the one is the norms, in one row


def test_two_snapshots_share_one_stream(device: LateDevice) -> None:
    training = Training(device)
    first = training.copy()
    training.update()
    second = training.copy()
    assert len(device.beside) == 1
    device.beside[0].finish(2)
    assert (first.copies[0].have_arrived(), second.copies[0].have_arrived()) == (True, False)
    must_be_as_before(first)
    second.wait()
    assert [float(tensor.min()) for tensor in second.tensors.values()] == [11, 12]


def test_what_does_not_fit_the_budget_is_transferred_in_the_stream_of_the_training(device: LateDevice) -> None:
    training = Training(device)
    copy = training.copy(4 * NUMBERS)
    assert (len(device.beside[0].waiting), len(device.waiting)) == (1, 2)
    training.update()
    device.beside[0].finish()
    assert not copy.copies[0].have_arrived()
    must_be_as_before(copy)


@pytest.mark.parametrize("budget", [0, SMALLEST_STAGED - 1])
def test_without_a_budget_there_is_no_second_stream(device: LateDevice, budget: int) -> None:
    training = Training(device)
    copy = training.copy(budget)
    assert device.beside == []
    training.update()
    must_be_as_before(copy)


def test_a_full_device_costs_the_second_stream_alone(device: LateDevice) -> None:
    device.free = 4 * NUMBERS - 1
    training = Training(device)
    copy = training.copy()
    assert device.beside == []
    training.update()
    must_be_as_before(copy)


def test_a_nan_is_found_whichever_stream_brought_it(device: LateDevice) -> None:
    training = Training(device)
    training.weights[1].as_subclass(Tensor)[5] = float("nan")
    copy = training.copy()
    training.update()
    assert len(copy.not_finite()) == 1


def test_a_few_numbers_take_no_second_stream(device: LateDevice) -> None:
    copies = HostCopies([device.tensor(torch.ones(3))])
    assert device.beside == []
    copies.wait()
    assert copies.all()[0].tolist() == [1, 1, 1]
