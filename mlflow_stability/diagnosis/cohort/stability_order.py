"""Puts runs in the order of their stability, the stablest first.

In: cards. Out: the same in order. What counts, one after the other: whether the training was lost, and how late;
whether it never learned; the worst finding; how often the loss spiked; lost steps; the final loss. Runs that never
learned come behind all that did, and runs that cannot be judged behind those; only lost ones come later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mlflow_stability.vocabulary.result import RunCard, Severity


def in_order_of_stability(cards: Iterable[RunCard]) -> list[RunCard]:
    """The stablest first; equals in the order in which they came."""
    return sorted(cards, key=_instability)


def _instability(card: RunCard) -> tuple[float, ...]:
    steps = max(1, card.steps)
    worst = max((each.severity for each in card.troubles), default=Severity.INFO)
    final = math.inf if card.final_loss is None or not math.isfinite(card.final_loss) else card.final_loss
    unjudged = card.unstable is None
    lateness = -float(card.divergence or 0) if card.lost else 0.0
    spikes = len(card.spike_steps) / steps
    stuck = card.state == "stuck"
    findings = len(card.troubles) / steps
    return card.lost, lateness, unjudged, stuck, worst, spikes, findings, card.wasted / steps, final
