"""Findings about one of several ranks that train together.

They are reported by the session, not detected; each is documented here in the same sections as every detector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.engine.finding_type import FindingType
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class RankNonfinite(FindingType):
    """The first non-finite loss came from one rank.

    What it sees: which rank had a NaN or infinite loss first. Ranks compare their losses at least every 10 steps, and
    each remembers the first step since then.

    Why it matters: after one step the NaN is on all ranks, and nothing else says where it began.

    What to try: inspect the batch of that rank at that step; check that host for hardware errors.

    When it is wrong: a loss that is only logged. The gradients of one rank may be NaN where its loss is finite; then
    no rank is named.

    Reference: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    kind = "rank_nonfinite"
    noun = "a NaN that began on one rank"
    plural = "NaNs that began on one rank"
    order = 1160
    severities = (Severity.WARNING,)
    remedies = (
        "Inspect the batch of that rank at that step.",
        "Check that host for hardware errors.",
    )


@dataclass(frozen=True, slots=True)
class Straggler(FindingType):
    """One rank is slower than the others.

    What it sees: the time from the end of a step to the next backward pass, on each rank. A straggler takes more than
    twice the median of the others, and at least 20 ms more, in 5 comparisons in a row. That time holds loading of
    data and the forward pass.

    Why it matters: all ranks wait for the slowest one at every step.

    What to try: profile the data loader of that rank; look for other processes on its host; check the clock and
    temperature of its device.

    When it is wrong: a rank that evaluates or logs on purpose. Where the forward pass communicates (FSDP, tensor
    parallelism), a slow forward pass slows all ranks alike, and only slow loading is seen.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    times: ClassVar[float] = 2.0
    """Minimum ratio to the median of the other ranks."""
    seconds: ClassVar[float] = 0.02
    """Minimum difference from it."""
    in_a_row: ClassVar[int] = 5
    """Number of comparisons in a row."""

    kind = "straggler"
    noun = "a straggler"
    plural = "stragglers"
    order = 1170
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        "Profile the data loader of that rank.",
        "Look for other processes on its host.",
        "Check the clock and temperature of its device.",
    )
