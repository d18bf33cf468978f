"""Whole tensors brought to the host."""

from __future__ import annotations

import pytest
import torch

from mlflow_stability.probes.step.readback import Parcel


def test_a_parcel_holds_what_was_put_into_it() -> None:
    parcel = Parcel([torch.arange(6.0).view(2, 3), torch.tensor([True, False]), torch.ones(2, dtype=torch.float16)])
    assert parcel.arrived
    numbers, flags, halves = parcel.opened()
    assert numbers.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert flags.tolist() == [True, False]
    assert str(halves.dtype) == "float16"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_parcel_from_a_device_is_sent_without_waiting() -> None:
    there = torch.arange(1 << 20, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        parcel = Parcel([there])
        there = there * 0
        assert isinstance(parcel.arrived, bool)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    (numbers,) = parcel.opened()
    assert numbers.sum() == (1 << 19) * ((1 << 20) - 1)
