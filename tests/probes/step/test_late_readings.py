"""Readings of a device that is far behind the host, played by a stand-in."""

from __future__ import annotations

import pytest
import torch
from probes.step.late_device import LateDevice

from mlflow_stability.probes.step.readback import Readback


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    late = LateDevice()
    late.install(monkeypatch)
    return late


def fetch(readback: Readback, device: LateDevice, number: int, result: list[list[float]]) -> None:
    readback.fetch([device.tensor(float(number)), 7.0], lambda values, rows: result.append(list(values)))


def test_nothing_is_read_before_it_has_arrived_and_nothing_waits(device: LateDevice) -> None:
    readback, result = Readback(), []
    for number in range(50):
        fetch(readback, device, number, result)
    assert (result, len(readback), device.waits) == ([], 50, 0)


def test_what_has_arrived_is_read_in_order_when_the_next_step_ends(device: LateDevice) -> None:
    readback, result = Readback(), []
    for number in range(20):
        fetch(readback, device, number, result)
        if number >= 5:
            device.finish(1)
    assert result == [[float(number), 7.0] for number in range(14)]
    readback.deliver()
    assert result == [[float(number), 7.0] for number in range(15)]
    assert device.waits == 0


def test_the_end_waits_for_all_of_them(device: LateDevice) -> None:
    readback, result = Readback(), []
    for number in range(10):
        fetch(readback, device, number, result)
    readback.drain()
    assert result == [[float(number), 7.0] for number in range(10)]


def test_a_step_on_the_host_comes_after_those_on_their_way(device: LateDevice) -> None:
    readback, result = Readback(), []
    fetch(readback, device, 1, result)
    readback.fetch([torch.tensor(2.0), 7.0], lambda values, rows: result.append(list(values)))
    assert result == [[1.0, 7.0], [2.0, 7.0]]


def test_rows_and_scalars_come_in_one_copy(device: LateDevice) -> None:
    readback, result = Readback(), []
    readback.fetch(
        [device.tensor(1.0), 3.0],
        lambda values, rows: result.append((list(values), rows)),
        [device.tensor([4.0, 5.0]), torch.tensor([6.0])],
    )
    assert len(device.waiting) == 1
    readback.drain()
    assert result == [([1.0, 3.0], [[4.0, 5.0], [6.0]])]
