"""Compare several runs: their order of stability, where they differ, what they have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from mlflow_stability.diagnosis.baseline_gate import gate_of, spike_rate_of
from mlflow_stability.diagnosis.cohort.cohort import cohort_of
from mlflow_stability.diagnosis.parameters.settings import differences_of
from mlflow_stability.kinds.catalog import OF_SETUP, TYPES, noun_of
from mlflow_stability.vocabulary.measured import LayerComparison
from mlflow_stability.vocabulary.result import Compared, Comparison, FirstDifference, RunCard, Severity
from mlflow_stability.vocabulary.text import capitalised, counted

MIN_RUNS = 2
"""Minimum number of runs with trouble, and of stable runs, for naming mistakes in the set-up."""
MIN_SHARE = 0.5
"""Share of the runs with trouble that a named mistake was found in."""
MAX_MISTAKES = 3
"""Maximum number of mistakes in the set-up that a comparison names."""


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
    """Compare these runs; ``asked`` is the number there would have been without an interruption."""
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
    stuck_and_unstable = sum(card.state == "stuck" and card.unstable is True for card in cards)
    also = f" ({stuck_and_unstable} of them unstable as well)" if stuck_and_unstable else ""
    words = {
        "lost": "lost",
        "unstable": "unstable",
        "stuck": f"stuck{also if stuck_and_unstable < counts['stuck'] else ' and unstable'}",
        "stable": "stable",
        "unclear": "not judged",
    }
    states = ", ".join(f"{counts[state]} {word}" for state, word in words.items() if counts[state])
    more = f"; {unread} could not be read" if unread else ""
    return f"{len(cards)} run{'s' if len(cards) != 1 else ''}: {states}{more}."


def in_order_of_stability(cards: Iterable[RunCard]) -> list[RunCard]:
    """Sort runs, the most stable first; equals keep their order.

    Runs that never learned come after all that did, and runs that cannot be judged after those; only lost ones are
    later.
    """
    return sorted(cards, key=_instability)


def _instability(card: RunCard) -> tuple[float, ...]:
    steps = max(1, card.steps)
    return (
        card.lost,
        -float(card.divergence or 0) if card.lost else 0.0,
        card.unstable is None,
        card.state == "stuck",
        max((mark.severity for mark in card.troubles), default=Severity.INFO),
        len(card.spike_steps) / steps,
        len(card.troubles) / steps,
        card.wasted / steps,
        math.inf if card.final_loss is None or not math.isfinite(card.final_loss) else card.final_loss,
    )


def separating_checks(cards: Sequence[RunCard]) -> tuple[str, ...]:
    """Name mistakes in the set-up that runs with trouble have and stable ones do not, the most frequent first."""
    stable = [card for card in cards if card.state == "stable"]
    troubled = [card for card in cards if card.state in ("lost", "stuck", "unstable")]
    if min(len(stable), len(troubled)) < MIN_RUNS:
        return ()
    counts = Counter(kind for card in troubled for kind in _mistakes(card))
    separating = counts.keys() - {kind for card in stable for kind in _mistakes(card)}
    kinds = [kind for kind in dict.fromkeys(finding_type.kind for finding_type in TYPES) if kind in separating]
    frequent = [kind for kind in kinds if counts[kind] >= max(MIN_RUNS, MIN_SHARE * len(troubled))]
    return tuple(
        f"{capitalised(noun_of(kind))} ({kind}): in {counts[kind]} of "
        f"{counted(len(troubled), 'run')} with trouble, in none of {len(stable)} stable ones."
        for kind in sorted(frequent, key=lambda kind: -counts[kind])[:MAX_MISTAKES]
    )


def _mistakes(card: RunCard) -> set[str]:
    return {mark.kind for mark in card.troubles if mark.kind in OF_SETUP}
