"""Says with counts how a parameter is associated with instability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.parameters.exposure import Watched
from mlflow_stability.diagnosis.parameters.features import Feature
from mlflow_stability.diagnosis.parameters.split import Split, best_split
from mlflow_stability.vocabulary.text import capitalised

ALIKE = 0.1
"""Shares of unstable runs that differ by less than this leave it to the time to tell the sides apart."""


def statement_of(feature: Feature, watched: Watched, beside: Sequence[Feature] = ()) -> str:
    """``Unstable were 61 of 80 runs with lr above 0.003, and 5 of 120 with lr up to 0.003.``

    ``beside``: what is named already; then the counts are those of the runs on the worse side of the first of them,
    where those say more.
    """
    outcome = watched.troubled
    split = best_split(feature, outcome)
    if beside:
        outer = best_split(beside[0], outcome)
        inner = None if outer is None else best_split(feature, outcome, outer.worse)
        if (
            outer is not None
            and inner is not None
            and _contrast(inner, outcome, outer.worse) > _contrast(split, outcome)
        ):
            return f"Among runs with {outer.words}: {_counts(inner, outcome, outer.worse)}."
    return f"{capitalised(counts_of(feature, watched))}."


def counts_of(feature: Feature, watched: Watched) -> str:
    """``unstable were 61 of 80 with lr above 0.003, and 5 of 120 with lr up to 0.003``.

    Where it is the time that tells them apart, that too.
    """
    split = best_split(feature, watched.troubled)
    said = _counts(split, watched.troubled)
    if split is None or abs(_contrast(split, watched.troubled)) >= ALIKE or not np.ptp(watched.steps):
        return said
    worse, other = (watched.steps[watched.troubled & side] for side in (split.worse, ~split.worse))
    if not len(worse) or not len(other):
        return said
    return f"{said}; median start at step {np.median(worse):,.0f} and {np.median(other):,.0f}"


def _counts(split: Split | None, outcome: NDArray[np.bool_], among: NDArray[np.bool_] | None = None) -> str:
    if split is None:
        return "associated with the outcome, with too few runs per value for counts"
    asked = np.ones(len(outcome), bool) if among is None else among
    worse, other = outcome[asked & split.worse], outcome[asked & ~split.worse]
    return (
        f"{split.words}: {int(worse.sum())} of {len(worse)} unstable; {split.other_words}: {int(other.sum())} of "
        f"{len(other)}"
    )


def _contrast(split: Split | None, outcome: NDArray[np.bool_], among: NDArray[np.bool_] | None = None) -> float:
    if split is None:
        return 0.0
    asked = np.ones(len(outcome), bool) if among is None else among
    return float(outcome[asked & split.worse].mean() - outcome[asked & ~split.worse].mean())
