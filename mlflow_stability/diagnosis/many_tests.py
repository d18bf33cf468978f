"""Corrects p-values for how many questions were asked.

In: the p-values of one family of tests. Out: those of Holm (1979), which bound the chance of a single false finding
among all of them, whatever hangs together with what.
"""

from __future__ import annotations

from collections.abc import Sequence


def corrected(p_values: Sequence[float]) -> list[float]:
    """Each p-value as if it had been the only question, in the order given."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found = [1.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = highest
    return found
