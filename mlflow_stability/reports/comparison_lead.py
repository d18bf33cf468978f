"""Says in one line what many runs that had trouble have in common: whoever reads no further has read that.

In: a comparison. Out: a sentence or two; empty where nothing goes with instability, or too few runs tell.
"""

from __future__ import annotations

from mlflow_stability.vocabulary.comparison import Comparison


def lead(comparison: Comparison) -> str:
    """``Unstable were 15 of 15 with lr above 0.1, and 0 of 25 with lr up to 0.1. Named as well: warmup.``"""
    named = comparison.cohort.associations if comparison.cohort else ()
    if not named:
        return ""
    others = ", ".join(" and ".join(each.params) for each in named[1:])
    return f"{named[0].statement} Named as well: {others}." if others else named[0].statement
