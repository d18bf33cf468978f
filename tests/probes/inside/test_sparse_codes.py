from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mlflow_stability.probes.inside.sparse_codes import QUANTITIES, describe_codes, different_rows


def described(bits: Tensor) -> dict[str, float]:
    return dict(zip(QUANTITIES, describe_codes(bits).tolist(), strict=True))


def slowly(bits: Tensor) -> dict[str, float]:
    """The same as anybody would write it down, pair by pair."""
    rows, width = bits.shape
    duty = bits.double().mean(0)
    shares = (duty / duty.sum()).tolist()
    pairs = [(bits[a] & bits[b]).sum().item() for a in range(rows) for b in range(rows) if a != b]
    active = bits.sum(1).double().mean().item()
    return {
        "sdr_rows": rows,
        "sdr_width": width,
        "sdr_active_bits": active,
        "sdr_unique_ratio": len({tuple(bit.tolist()) for bit in bits}) / rows,
        "sdr_bit_usage": bits.any(0).double().mean().item(),
        "sdr_duty_entropy": -sum(p * math.log(p) for p in shares if p > 0) / math.log(width),
        "sdr_duty_std": duty.std(correction=0).item(),
        "sdr_duty_max": duty.max().item(),
        "sdr_dead_columns": width - bits.any(0).sum().item(),
        "sdr_overlap": sum(pairs) / len(pairs),
        "sdr_overlap_expected": active**2 / width,
    } | {f"sdr_duty_p{level}": duty.quantile(level / 100).item() for level in (5, 25, 50, 75, 95)}


@settings(max_examples=60)
@given(st.integers(2, 40), st.integers(2, 200), st.integers(0, 2**31), st.floats(0.01, 0.5), st.integers(1, 40))
def test_every_number_is_what_counting_gives(rows: int, width: int, seed: int, share: float, patterns: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    bits = torch.rand(patterns, width, generator=dice) < share
    bits = bits[torch.randint(patterns, (rows,), generator=dice)]
    bits[0, 0] = True
    assert described(bits) == pytest.approx(slowly(bits), rel=1e-9, abs=1e-12)


def test_counts_do_not_overflow_where_bytes_would() -> None:
    bits = torch.ones(1000, 64, dtype=torch.bool)
    result = described(bits)
    assert result["sdr_active_bits"] == 64
    assert result["sdr_unique_ratio"] == 1 / 1000
    assert result["sdr_overlap"] == 64


@pytest.mark.parametrize("width", [64, 65, 512, 2048])
def test_codes_that_differ_in_two_bits_only_are_different_patterns(width: int) -> None:
    bits = torch.zeros(width, width, dtype=torch.bool)
    bits[:, :3] = True
    bits ^= torch.eye(width, dtype=torch.bool)
    assert described(bits)["sdr_unique_ratio"] == 1.0


def test_many_codes_are_counted_right_over_several_chunks() -> None:
    dice = torch.Generator().manual_seed(0)
    bits = torch.rand(5000, 512, generator=dice) < 0.05
    bits[:2000] = bits[2000:4000]
    assert described(bits)["sdr_unique_ratio"] == 3000 / 5000


@settings(max_examples=40)
@given(
    st.integers(1, 30), st.integers(1, 9), st.integers(1, 5), st.sampled_from([torch.float32, torch.int64, torch.bool])
)
def test_different_rows_of_any_numbers_are_counted(rows: int, width: int, values: int, dtype: torch.dtype) -> None:
    dice = torch.Generator().manual_seed(rows * width)
    matrix = torch.randint(values, (rows, width), generator=dice).to(dtype)
    assert int(different_rows(matrix)) == len({tuple(item.tolist()) for item in matrix})


def test_nothing_is_drawn_from_the_generator_of_the_training() -> None:
    before = torch.get_rng_state()
    describe_codes(torch.rand(40, 999) < 2)
    torch.set_rng_state(before)
    describe_codes(torch.ones(40, 777, dtype=torch.bool))
    assert torch.equal(before, torch.get_rng_state())
