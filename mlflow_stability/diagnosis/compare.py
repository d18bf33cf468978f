"""Concludes what several runs look like next to each other.

In: their cards, which one is the baseline, and of two where they part and their layers beside each other, if that was
looked for. Out: a `Comparison`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mlflow_stability.diagnosis.baseline_gate import gate_of
from mlflow_stability.diagnosis.cohort import cohort_of, in_order_of_stability, separating_checks, spike_rate_of
from mlflow_stability.diagnosis.parameters.parameter_difference import differences_of
from mlflow_stability.vocabulary.measured import LayerComparison
from mlflow_stability.vocabulary.result import Compared, Comparison, FirstDifference, RunCard


def comparison_of(
    cards: Sequence[RunCard],
    *,
    baseline: RunCard | None = None,
    first_difference: FirstDifference | None = None,
    layers: Sequence[LayerComparison] = (),
    asked: int | None = None,
    interrupted: bool = False,
    notes: Sequence[str] = (),
) -> Comparison:
    """Everything about these runs; ``asked``: how many there would have been without an interruption."""
    readable = in_order_of_stability(card for card in cards if card.readable)
    unread = tuple(card for card in cards if not card.readable)
    return Comparison(
        runs=tuple(Compared(card, spike_rate_of(card)) for card in readable),
        unread=unread,
        summary=_summary(readable, len(unread), interrupted),
        differences=differences_of(readable) if len(readable) > 1 else (),
        first_difference=first_difference,
        layers=tuple(layers),
        gate=None if baseline is None else gate_of(cards, baseline),
        cohort=cohort_of(readable),
        notes=(*separating_checks(readable), *notes),
        asked=len(cards) if asked is None else asked,
        interrupted=interrupted,
    )


def _summary(cards: Sequence[RunCard], unread: int, interrupted: bool) -> str:
    if not cards and interrupted:
        return "Interrupted before a run was read."
    if not cards:
        return "No run could be read." if unread else "No run to compare."
    counts = Counter(card.state for card in cards)
    shaky = sum(card.state == "stuck" and card.unstable is True for card in cards)
    some = f" ({shaky} of them unstable as well)" if shaky else ""
    words = {
        "lost": "lost",
        "unstable": "unstable",
        "stuck": f"stuck{some if shaky < counts['stuck'] else ' and unstable'}",
        "stable": "stable",
        "unclear": "not judged",
    }
    counted = ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state])
    more = f"; {unread} could not be read" if unread else ""
    return f"{len(cards)} run{'s' if len(cards) != 1 else ''}: {counted}{more}."
