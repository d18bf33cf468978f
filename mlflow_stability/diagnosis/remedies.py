"""Says what to change in a training, most useful first.

In: the episodes of a run, its outcome and the cause of it. Out: sentences, each once: what goes against the cause, then
what goes against the episode that decides the outcome, then against the worst and earliest others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlflow_stability.diagnosis.cause_catalog import CAUSES
from mlflow_stability.diagnosis.deciding import deciding_of
from mlflow_stability.diagnosis.remedy_topics import one_of_each
from mlflow_stability.vocabulary.cause import Cause
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity

AGAINST: dict[str, tuple[str, ...]] = {each.name: each.remedies for each in CAUSES}
"""What goes against each cause."""


def remedies_of(episodes: Sequence[Episode], cause: Cause | None, outcome: str) -> tuple[str, ...]:
    """What to change; of the cause and the episodes the remedies that fit the run, as they bear them."""
    serious = [each for each in episodes if each.severity >= Severity.WARNING]
    deciding = deciding_of(outcome, serious)
    ranked = sorted(serious, key=lambda each: (each is not deciding, -each.severity, each.attempt, each.start))
    against = cause.remedies if cause is not None else ()
    kept: dict[str, frozenset[str]] = {}
    every = (*against, *(remedy for each in ranked for remedy in each.remedies))
    for remedy in one_of_each(every, "" if cause is None else cause.name):
        words = frozenset(re.findall(r"[\w.-]*\w", remedy.lower()))
        if not any(words <= said for said in kept.values()):
            kept[remedy] = words
    return tuple(kept)
