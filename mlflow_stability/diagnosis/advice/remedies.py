"""Chooses what to change in a training, most useful first.

In: the episodes of a run, its outcome and the cause of it. Out: what goes against the cause, then what goes against the
episode that decides the outcome, then against the worst and earliest others; where the cause is a mistake in the
set-up, what goes against further mistakes comes before that. Guarantees: one remedy on each topic, the
most exact one; none that contradicts what goes against the cause; none that lowers the learning rate where that was
ruled out as the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlflow_stability.diagnosis.causes.learning_rate import OF_THE_RATE, rate_is_innocent
from mlflow_stability.diagnosis.verdict import deciding_of
from mlflow_stability.kinds.catalog import OF_SETUP
from mlflow_stability.vocabulary.result import RATE_TOPICS, Cause, Finding, Remedy, Severity, Topic, without_topics


def remedies_of(episodes: Sequence[Finding], cause: Cause | None, outcome: str) -> tuple[Remedy, ...]:
    """What to change; of the cause and the episodes the remedies that fit the run, as they bear them."""
    serious = [episode for episode in episodes if episode.severity >= Severity.WARNING]
    deciding = deciding_of(outcome, serious)
    is_of_setup = cause is not None and cause.name == "setup"

    def rank(episode: Finding) -> tuple[bool, bool, int, int, int]:
        is_mistake = is_of_setup and episode.kind in OF_SETUP
        return not is_mistake, episode is not deciding, -episode.severity, episode.attempt, episode.start

    ranked = sorted(serious, key=rank)
    against = cause.remedies if cause is not None else ()
    others = tuple(remedy for episode in ranked for remedy in episode.remedies)
    if cause is not None and cause.name not in OF_THE_RATE and rate_is_innocent(cause.ruled_out_causes):
        against, others = without_topics(against, RATE_TOPICS) or against, without_topics(others, RATE_TOPICS)
    return one_of_each(against, others)


def one_of_each(against: Sequence[Remedy], others: Sequence[Remedy] = ()) -> tuple[Remedy, ...]:
    """The remedies in their order, the most exact one of each topic; `against`: those of the cause."""
    contradicted = {topic for remedy in against for topic in remedy.action.contradicts}
    remedies = [remedy for remedy in dict.fromkeys((*against, *others)) if remedy.topic not in contradicted]
    kept: dict[Topic | Remedy, Remedy] = {}
    for remedy in remedies:
        for part in _parts(remedy, remedies):
            key = part.topic or part
            if key not in kept or part.exactness > kept[key].exactness:
                kept[key] = part
    return tuple(kept.values())


def _parts(remedy: Remedy, remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """A remedy and its alternative as two, where another remedy is about either of them."""
    if remedy.alternative is None:
        return (remedy,)
    topics = (remedy.topic, remedy.alternative.topic)
    if not any(other.topic in topics for other in remedies if other != remedy):
        return (remedy,)
    return replace(remedy, alternative=None), remedy.alternative
