"""Dense representations: over how many directions they spread, and how alike they are.

The effective rank is exp of the entropy of the singular values' shares (Roy and Vetterli, 2007; RankMe,
arXiv:2210.02885), the stable rank the sum of their squares over the largest square. On the CPU they come from the
eigenvalues. Torch waits for an accelerator when it computes those; there sums over the square roots of all eigenvalues
x, and over sqrt(x) ln(x), are integrals over resolvents, which are traces of inverses and need no eigenvalue:
sqrt(x) = 1/pi ∫ e^(u/2) x / (x + e^u) du, and with one more factor u under the integral sqrt(x) ln(x).

Guarantees: double precision, from at most 2,048 rows, with a Gram matrix of at most 512 rows and columns; non-finite
rows are left out; no device is waited for.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType(
        "effective_rank",
        "directions in which outputs differ, by entropy; of `representations`, every `sdr_check_interval`",
    ),
    SignalType("stable_rank", "in how many directions it differs, by norms"),
    SignalType("mean_cosine", "how alike what it puts out is: the mean cosine of two rows"),
    topic="representations",
    interval="forward pass",
    left_out="nan",
)

QUANTITIES = ("effective_rank", "stable_rank", "mean_cosine")
MAX_ROWS = 2048
MAX_GRAM_SIDE = 512
MAX_COLUMNS = 8192
SQUARINGS = 16  # of a matrix, until only its largest eigenvalue is left, to 0.01 %
# Values of u at which the integrals are summed; they are then right to 0.1 %.
NODES = tuple(range(-30, 33))
INVERTED_AT_ONCE = 8


def describe_rows(rows: Tensor) -> Tensor:
    """Return the quantities of a matrix with at least two rows, one for each representation."""
    taken = _taken(rows)
    lengths = torch.linalg.vector_norm(taken, dim=1, keepdim=True)
    there = (lengths > 0).sum()
    directions = torch.where(lengths > 0, taken / lengths, 0.0).sum(0)
    cosine = (directions.square().sum() - there) / (there * (there - 1))
    gram = taken.T @ taken if taken.size(0) > taken.size(1) else taken @ taken.T
    shares = gram / gram.trace()
    ranks = ranks_by_eigenvalues if gram.is_cpu else ranks_by_resolvents
    return torch.stack((*ranks(torch.nan_to_num(shares, 0.0)), cosine))


def ranks_by_eigenvalues(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return effective and stable rank of a Gram matrix with trace 1; NaN for one of zeros."""
    squares = torch.linalg.eigvalsh(shares).clamp_min_(0.0)
    values = squares.sqrt()
    portions = values / values.sum()
    return torch.exp(-torch.special.xlogy(portions, portions).sum()), squares.sum() / squares.amax()


def ranks_by_resolvents(shares: Tensor) -> tuple[Tensor, Tensor]:
    side = len(shares)
    identity = torch.eye(side, dtype=shares.dtype, device=shares.device)
    roots = shares.new_zeros(())
    weighted = shares.new_zeros(())
    for begin in range(0, len(NODES), INVERTED_AT_ONCE):
        some = NODES[begin : begin + INVERTED_AT_ONCE]
        factors, _ = torch.linalg.cholesky_ex(torch.stack([shares + math.exp(node) * identity for node in some]))
        inverses = torch.linalg.solve_triangular(factors, identity.expand(len(some), -1, -1), upper=False)
        traces = inverses.square().sum((1, 2)).unbind()
        for node, trace in zip(some, traces, strict=True):
            term = math.exp(node / 2) / math.pi * (side - math.exp(node) * trace)
            roots = roots + term
            weighted = weighted + node * term
    # With s the singular values, sums of s and of s ln s: the entropy of their shares follows from both.
    entropy = roots.log() - weighted / 2 / roots
    return torch.exp(entropy), shares.trace() / _largest(shares)


# The largest eigenvalue: each squaring leaves less of all others.
def _largest(shares: Tensor) -> Tensor:
    logarithm = shares.new_zeros(())
    power = shares
    for number in range(1, SQUARINGS + 1):
        power = power @ power
        trace = power.trace()
        logarithm = logarithm + trace.log() / 2**number
        power = power / trace
    return logarithm.exp()


def _taken(rows: Tensor) -> Tensor:
    columns = -(-rows.size(1) // MAX_COLUMNS)
    rows = rows[:, ::columns]
    most = MAX_ROWS if rows.size(1) <= MAX_GRAM_SIDE else MAX_GRAM_SIDE
    taken = rows[:: -(-rows.size(0) // most)].to(torch.float64)
    return torch.where(torch.isfinite(taken).all(1, keepdim=True), taken, 0.0)
