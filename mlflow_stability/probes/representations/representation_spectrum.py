"""Describes dense representations: over how many directions they spread, and how alike they are.

In: a matrix, a row for each representation. Out: effective rank, stable rank, mean cosine similarity. Guarantees: in
double precision, from at most 2,048 rows, with a Gram matrix of at most 512 rows and columns; rows that are not finite
are left out; nothing is waited for.

The effective rank is exp of the entropy of the singular values' shares (Roy and Vetterli, 2007; RankMe,
arXiv:2210.02885), the stable rank the sum of their squares over the largest square. On the CPU they come from the
eigenvalues. Torch waits for an accelerator when it computes those; there sums over the square roots of all eigenvalues
x, and over sqrt(x) ln(x), are integrals over resolvents, which are traces of inverses and need no eigenvalue:
sqrt(x) = 1/pi ∫ e^(u/2) x / (x + e^u) du, and with one more factor u under the integral sqrt(x) ln(x).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "effective_rank",
        "directions in which outputs differ, by entropy; of `representations`, every `sdr_check_interval`",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "stable_rank",
        "in how many directions it differs, by norms",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
    SignalType(
        "mean_cosine",
        "how alike what it puts out is: the mean cosine of two rows",
        "representations",
        interval="forward pass",
        left_out="nan",
    ),
)

QUANTITIES = tuple(each.quantity for each in SIGNALS)
"""What `describe_rows` gives, in its order."""
MOST_ROWS = 2048
MOST_SIDE = 512
MOST_COLUMNS = 8192
SQUARINGS = 16
"""How often a matrix is squared until only its largest eigenvalue is left: to a ten-thousandth of it."""
NODES = tuple(range(-30, 33))
"""At which u the integrals are summed up; by this step and these ends they are right to a thousandth."""
AT_ONCE = 8
"""So many matrices are inverted at the same time."""


def describe_rows(rows: Tensor) -> Tensor:
    """The quantities of a matrix of numbers with at least two rows."""
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
    """Effective and stable rank from a Gram matrix whose trace is 1; NaN for one of zeros."""
    squares = torch.linalg.eigvalsh(shares).clamp_min_(0.0)
    values = squares.sqrt()
    portions = values / values.sum()
    return torch.exp(-torch.special.xlogy(portions, portions).sum()), squares.sum() / squares.amax()


def ranks_by_resolvents(shares: Tensor) -> tuple[Tensor, Tensor]:
    """The same without eigenvalues."""
    side = len(shares)
    one = torch.eye(side, dtype=shares.dtype, device=shares.device)
    roots = shares.new_zeros(())
    weighted = shares.new_zeros(())
    for begin in range(0, len(NODES), AT_ONCE):
        some = NODES[begin : begin + AT_ONCE]
        factors, _ = torch.linalg.cholesky_ex(torch.stack([shares + math.exp(node) * one for node in some]))
        inverses = torch.linalg.solve_triangular(factors, one.expand(len(some), -1, -1), upper=False)
        traces = inverses.square().sum((1, 2)).unbind()
        for node, trace in zip(some, traces, strict=True):
            term = math.exp(node / 2) / math.pi * (side - math.exp(node) * trace)
            roots = roots + term
            weighted = weighted + node * term
    # With s the singular values, sums of s and of s ln s: the entropy of their shares follows from both.
    entropy = roots.log() - weighted / 2 / roots
    return torch.exp(entropy), shares.trace() / _largest(shares)


def _largest(shares: Tensor) -> Tensor:
    """The largest eigenvalue: each squaring leaves less of all the others."""
    logarithm = shares.new_zeros(())
    power = shares
    for number in range(1, SQUARINGS + 1):
        power = power @ power
        trace = power.trace()
        logarithm = logarithm + trace.log() / 2**number
        power = power / trace
    return logarithm.exp()


def _taken(rows: Tensor) -> Tensor:
    """Evenly spread rows in double precision; those that are not finite as zeros."""
    columns = -(-rows.size(1) // MOST_COLUMNS)
    rows = rows[:, ::columns]
    most = MOST_ROWS if rows.size(1) <= MOST_SIDE else MOST_SIDE
    taken = rows[:: -(-rows.size(0) // most)].to(torch.float64)
    return torch.where(torch.isfinite(taken).all(1, keepdim=True), taken, 0.0)
