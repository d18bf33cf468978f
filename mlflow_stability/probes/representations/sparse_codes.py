"""Describes sparse binary codes: how many bits are on, how many patterns differ, how evenly the bits are used.

In: a matrix of booleans, a row for each code. Out: one number for each quantity. Guarantees: no loop over codes or
bits; nothing is waited for; scratch memory is a byte for each bit and some megabytes.

Eight booleans that lie side by side are one 64-bit word. Words are added up for columns, 255 rows at a time so that no
byte overflows. For patterns eight words are folded into one without a gap, and the words of a row, well mixed, are
summed up with odd weights that are always the same. Two different codes have the same sum with a chance of about
2^-58; the patterns are counted by two independent sums and the larger count holds: that 100,000 codes are counted wrong
has a chance of less than 1 in 10^12.
"""

from __future__ import annotations

from functools import lru_cache
from math import log
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import pad

from mlflow_stability.probes.tensors.tensor_sums import on_device, widest
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "sdr_rows",
        "sparse binary codes of the batch; of `representations`, every `sdr_check_interval`",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType("sdr_width", "bits of a code", "representations", interval="forward pass", left_out="nan"),
    SignalType(
        "sdr_active_bits", "bits that are on, of a code", "representations", interval="forward pass", left_out="nan"
    ),
    SignalType(
        "sdr_unique_ratio", "share of codes that differ", "representations", interval="forward pass", left_out="nan"
    ),
    SignalType("sdr_bit_usage", "share of bits in use", "representations", interval="forward pass", left_out="nan"),
    SignalType(
        "sdr_duty_entropy",
        "how often each bit is on, as entropy: 1 where all are alike",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_duty_std",
        "standard deviation of how often each bit is on",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_duty_max",
        "how often the most frequent bit is on",
        "representations",
        combined="max",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_dead_columns", "bits that are never on", "representations", interval="forward pass", left_out="nan"
    ),
    SignalType("sdr_overlap", "bits that two codes share", "representations", interval="forward pass", left_out="nan"),
    SignalType(
        "sdr_overlap_expected",
        "bits that they would share by chance",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_duty_p5",
        "5th percentile of how often each bit is on",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_duty_p25",
        "25th percentile of how often each bit is on",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_duty_p50",
        "50th percentile of how often each bit is on",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_duty_p75",
        "75th percentile of how often each bit is on",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "sdr_duty_p95",
        "95th percentile of how often each bit is on",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
)

QUANTITIES = tuple(each.quantity for each in SIGNALS)
"""What `describe_codes` gives, in its order."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The percentiles of the duty cycles."""
CHUNK = 2**17
"""How many words are worked on at a time: as many as a cache holds."""
BYTES = 8
"""Of a word."""
MOST_IN_A_BYTE = 255
MIXERS = ((-7046029254386353131, -4658895280553007687), (-4417276706812531889, 6364136223846793005))
"""Odd factors with bits all over them: the golden ratio, MurmurHash3's finalizer, Knuth's generator."""


def describe_codes(bits: Tensor) -> Tensor:
    """The quantities of a matrix of booleans with at least two rows."""
    rows, width = bits.shape
    words = _words(bits)
    columns = _column_counts(words)[:width]
    wide = widest(bits.device)
    counts = columns.to(wide)
    active = counts.sum() / rows
    duty = counts / rows
    shares = counts / counts.sum()
    entropy = -torch.special.xlogy(shares, shares).sum() / max(log(width), 1e-9)
    used = (columns > 0).sum().to(wide)
    overlap = (counts * (counts - 1)).sum() / (rows * (rows - 1))
    few = on_device((rows, width), bits.device, wide)
    patterns = _patterns(words).to(wide)
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
    """How many different rows a matrix of any numbers has."""
    octets = rows.contiguous().view(torch.uint8)
    words = _filled(octets, BYTES).view(torch.int64)
    sums = torch.cat([_sums(each) for each in _chunks(words)], 1)
    return _most_different(sums)


def _words(bits: Tensor) -> Tensor:
    """Eight columns as one word; the number of words is a multiple of eight."""
    return _filled(bits.contiguous(), BYTES * BYTES).view(torch.int64)


def _filled(rows: Tensor, multiple: int) -> Tensor:
    """With zeros behind each row, if its length is not a multiple."""
    missing = -rows.size(1) % multiple
    return pad(rows, (0, missing)) if missing else rows


def _column_counts(words: Tensor) -> Tensor:
    """How often each bit is on."""
    whole = len(words) // MOST_IN_A_BYTE * MOST_IN_A_BYTE
    sums = words[:whole].view(-1, MOST_IN_A_BYTE, words.size(1)).sum(1)
    rest = words[whole:].sum(0, keepdim=True)
    return torch.cat((sums, rest)).view(torch.uint8).sum(0)


def _patterns(words: Tensor) -> Tensor:
    """How many different rows there are."""
    return _most_different(torch.cat([_sums(_folded(each)) for each in _chunks(words)], 1))


def _chunks(words: Tensor) -> tuple[Tensor, ...]:
    return torch.split(words, max(CHUNK // max(words.size(1), 1), 1))


def _folded(words: Tensor) -> Tensor:
    """Only the lowest bit of each byte is in use: eight words have room in one."""
    for shift in (1, 2, 4):
        half = words.size(1) // 2
        words = words[:, :half] | (words[:, half:] << shift)
    return words


def _sums(words: Tensor) -> Tensor:
    """Two sums of each row."""
    return torch.stack([(_mixed(words, seed) * _weights(words.size(1), seed, words.device)).sum(1) for seed in (0, 1)])


def _mixed(words: Tensor, seed: int) -> Tensor:
    """Each word as another one, so that a change of any bit changes bits all over it; different ones stay different."""
    first, second = MIXERS[seed]
    words = words * first
    words ^= (words >> 32) & 0xFFFFFFFF
    words *= second
    words ^= (words >> 32) & 0xFFFFFFFF
    return words


@lru_cache(maxsize=32)
def _weights(count: int, seed: int, device: torch.device) -> Tensor:
    """Odd numbers that look random and are the same every time."""
    generator = Random(seed)
    return on_device([generator.getrandbits(63) | 1 for _ in range(count)], device, torch.long)


def _most_different(sums: Tensor) -> Tensor:
    """How many different values the rows have; the larger count, for a sum may be shared by chance."""
    return 1 + (sums.sort(1).values.diff(dim=1) != 0).sum(1).amax()
