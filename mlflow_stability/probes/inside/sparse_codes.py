"""Sparse binary codes among module outputs: which outputs are codes, and how diverse they are.

An output is taken for codes by its values; masks are not: dropout masks are not all zeros and ones, one-hot choices
have one bit, numbers without gradient are not learnt, boolean rows must have equally many bits.

Eight booleans side by side are one 64-bit word. Words are added up for columns, 255 rows at a time so that no byte
overflows. For patterns eight words are folded into one without a gap, and the words of a row, mixed, are summed with
odd weights that are always the same; two independent sums make a wrong count of 100,000 codes less likely than 1 in
10^12. Guarantees: no loop over codes or bits; no device is waited for; scratch memory is a byte for each bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad

from mlflow_stability.probes.hooks.thread_state import is_measurable
from mlflow_stability.probes.tensor_sums import HALVES, on_device, widest
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("sdr_rows", "sparse binary codes of the batch; of `representations`, every `sdr_check_interval`"),
    SignalType("sdr_width", "bits of a code"),
    SignalType("sdr_active_bits", "bits that are on, of a code"),
    SignalType("sdr_unique_ratio", "share of codes that differ"),
    SignalType("sdr_bit_usage", "share of bits in use"),
    SignalType("sdr_duty_entropy", "how often each bit is on, as entropy: 1 where all are alike"),
    SignalType("sdr_duty_std", "standard deviation of how often each bit is on"),
    SignalType("sdr_duty_max", "how often the most frequent bit is on", combined="max"),
    SignalType("sdr_dead_columns", "bits that are never on"),
    SignalType("sdr_overlap", "bits that two codes share"),
    SignalType("sdr_overlap_expected", "bits that they would share by chance"),
    SignalType("sdr_duty_p5", "5th percentile of how often each bit is on"),
    SignalType("sdr_duty_p25", "25th percentile of how often each bit is on"),
    SignalType("sdr_duty_p50", "50th percentile of how often each bit is on"),
    SignalType("sdr_duty_p75", "75th percentile of how often each bit is on"),
    SignalType("sdr_duty_p95", "95th percentile of how often each bit is on"),
    topic="representations",
    interval="forward pass",
    left_out="nan",
)

QUANTITIES = tuple(signal.quantity for signal in SIGNALS)  # of `describe_codes`, in its order
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # percentiles of how often a bit is on
CHUNK = 2**17  # words that fit into a cache
WORD_BYTES = 8
MAX_OF_BYTE = 255
# Odd factors: the golden ratio, MurmurHash3's finalizer, Knuth's generator.
MIXERS = ((-7046029254386353131, -4658895280553007687), (-4417276706812531889, 6364136223846793005))


def describe_codes(bits: Tensor) -> Tensor:
    """Return the quantities of a matrix of booleans with at least two rows, one for each code."""
    rows, width = bits.shape
    words = _filled(bits.contiguous(), WORD_BYTES * WORD_BYTES).view(torch.int64)
    whole = len(words) // MAX_OF_BYTE * MAX_OF_BYTE
    sums = words[:whole].view(-1, MAX_OF_BYTE, words.size(1)).sum(1)
    rest = words[whole:].sum(0, keepdim=True)
    columns = torch.cat((sums, rest)).view(torch.uint8).sum(0)[:width]
    wide = widest(bits.device)
    counts = columns.to(wide)
    active = counts.sum() / rows
    duty = counts / rows
    shares = counts / counts.sum()
    entropy = -torch.special.xlogy(shares, shares).sum() / max(log(width), 1e-9)
    used = (columns > 0).sum().to(wide)
    overlap = (counts * (counts - 1)).sum() / (rows * (rows - 1))
    few = on_device((rows, width), bits.device, wide)
    patterns = _most_different(torch.cat([_sums(_folded(chunk)) for chunk in _chunks(words)], 1)).to(wide)
    percentiles = torch.quantile(duty, on_device(LEVELS, bits.device, wide))
    single = torch.stack(
        (
            few[0],
            few[1],
            active,
            patterns / rows,
            used / width,
            entropy,
            duty.std(correction=0),
            duty.max(),
            width - used,
            overlap,
            active.square() / width,
        )
    )
    return torch.cat((single, percentiles))


def different_rows(rows: Tensor) -> Tensor:
    octets = rows.contiguous().view(torch.uint8)
    words = _filled(octets, WORD_BYTES).view(torch.int64)
    sums = torch.cat([_sums(chunk) for chunk in _chunks(words)], 1)
    return _most_different(sums)


def _filled(rows: Tensor, multiple: int) -> Tensor:
    missing = -rows.size(1) % multiple
    return pad(rows, (0, missing)) if missing else rows


def _chunks(words: Tensor) -> tuple[Tensor, ...]:
    return torch.split(words, max(CHUNK // max(words.size(1), 1), 1))


# Only the lowest bit of each byte is in use: eight words have room in one.
def _folded(words: Tensor) -> Tensor:
    for shift in (1, 2, 4):
        half = words.size(1) // 2
        words = words[:, :half] | (words[:, half:] << shift)
    return words


def _sums(words: Tensor) -> Tensor:
    return torch.stack([(_mixed(words, seed) * _weights(words.size(1), seed, words.device)).sum(1) for seed in (0, 1)])


# A change of any bit changes bits all over the word; different words stay different.
def _mixed(words: Tensor, seed: int) -> Tensor:
    first, second = MIXERS[seed]
    words = words * first
    words ^= (words >> 32) & 0xFFFFFFFF
    words *= second
    words ^= (words >> 32) & 0xFFFFFFFF
    return words


@lru_cache(maxsize=32)
def _weights(count: int, seed: int, device: torch.device) -> Tensor:
    generator = Random(seed)
    return on_device([generator.getrandbits(63) | 1 for _ in range(count)], device, torch.long)


# The larger count holds, for a sum may be shared by chance.
def _most_different(sums: Tensor) -> Tensor:
    return 1 + (sums.sort(1).values.diff(dim=1) != 0).sum(1).amax()


MIN_BITS = 64
MAX_ACTIVE_SHARE = 0.25
MIN_ACTIVE_BITS = 2
MAX_CHECKED_VALUES = 2**16
MAX_VALUES = 2**24  # of more, evenly spread rows are taken


def may_be_codes(output: Tensor, learning: bool) -> bool:
    """Whether shape and type are those of codes; `learning` says whether gradients are recorded."""
    wide = output.dim() >= 2 and output.size(-1) >= MIN_BITS and output.numel() >= 2 * output.size(-1)
    learnt = output.is_floating_point() and (output.requires_grad or not learning)
    return wide and (learnt or output.dtype is torch.bool)


def are_codes(output: Tensor) -> Tensor:
    """Whether the values are those of codes, as a scalar on the device: zeros and few ones, but several in a row."""
    rows = output.reshape(-1, output.size(-1))
    rows = rows[:: -(-rows.numel() // MAX_CHECKED_VALUES)]
    on = bits_of(rows)
    active = on.sum(1)
    share = active.sum().to(torch.float32) / on.numel()  # else it would have the script's default type
    fit = (share < MAX_ACTIVE_SHARE) & (share * on.size(1) >= MIN_ACTIVE_BITS)
    if output.dtype is torch.bool:
        return fit & (active == active[0]).all()
    # A straight-through gradient adds and subtracts a number, so that values are not exactly zero or one.
    near = 0.01 if output.dtype in HALVES else 1e-3
    return fit & ((rows - on.to(rows.dtype)).abs() <= near).all()


def bits_of(rows: Tensor) -> Tensor:
    return rows if rows.dtype is torch.bool else rows > 0.5


def spread_rows(output: Tensor, axis: int = -1) -> Tensor:
    """Return the output as a matrix, a row for each example or place; of large ones evenly spread rows."""
    matrix = output.movedim(axis, -1).reshape(-1, output.size(axis))
    return matrix[:: -(-matrix.numel() // MAX_VALUES)]


def share_that_differs(inputs: Tensor, count: int) -> Tensor | None:
    """Return the share of different rows among `count` inputs, or None if there are fewer rows."""
    if inputs.numel() == count:
        rows = inputs.reshape(count, 1)
    elif inputs.dim() and inputs.numel() == count * inputs.size(-1):
        rows = inputs.reshape(count, -1)
    elif inputs.dim() and inputs.size(0) == count:
        rows = inputs.flatten(1)
    else:
        return None
    return different_rows(rows).to(torch.float32) / count if inputs.numel() <= MAX_VALUES else None


# Names of a parameter, buffer or attribute that holds the temperature, or its logarithm.
PLAIN, LOGARITHM = "temperature", "log_temperature"


def temperature_of(chain: Sequence[Module], device: torch.device) -> Tensor | None:
    """Return the temperature as a scalar on the device; `chain` is the module and those around it, outwards."""
    for module in chain:
        for inner in Module.modules(module):
            for name in (PLAIN, LOGARITHM):
                value = _scalar(getattr(inner, name, None), device)
                if value is not None:
                    return value.exp() if name == LOGARITHM else value
    return None


def _scalar(held: Any, device: torch.device) -> Tensor | None:
    if is_measurable(held) and held.is_floating_point():
        return held.detach().mean(dtype=torch.float32).to(device, non_blocking=True)
    if isinstance(held, (int, float)) and not isinstance(held, bool):
        return on_device([float(held)], device, torch.float32)[0]
    return None
