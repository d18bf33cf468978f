"""Tells how long gradients were not cleared.

In: events of a run. Out: for a `missing_zero_grad` event, the step from which on gradients were cleared again. While
nothing says so they are not cleared: who records tells of it once, and again only after they were cleared in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlflow_stability.kinds.reported.setup import MissingZeroGrad
from mlflow_stability.vocabulary.facts import ConfigurationFacts
from mlflow_stability.vocabulary.result import Episode, Event


def cleared_from(first: int, events: Iterable[Event]) -> int | None:
    """From which step on gradients that were not cleared since step ``first`` were; None: to the end they were not."""
    changes = ((each.step, each.facts) for each in events)
    again = (
        step for step, facts in changes if isinstance(facts, ConfigurationFacts) and facts.not_cleared_since == first
    )
    return min(again, default=None)


def persists(episode: Episode) -> bool:
    """Whether it says that gradients are not cleared, to the end."""
    return episode.kind == MissingZeroGrad.kind and episode.recovered is False
