"""Finds the parameters and tags in which runs differ.

In: cards. Out: for each that is not the same in all of them its values, those that differ in most runs last. Promised:
what only names a run (its id, its folders, its time, our own tags) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mlflow_stability.vocabulary.comparison import Difference
from mlflow_stability.vocabulary.run_card import RunCard

IDENTITY = re.compile(
    r"(?:^|[._/ -])(?:run_?(?:name|id)|(?:output|log|logging|checkpoint|ckpt|save)_?(?:dir|path))$", re.I
)
"""Parameters that say where a run lies or what it is called, and nothing about what it does."""
TAGS_THAT_SAY_SOMETHING = ("mlflow.source.name", "mlflow.source.git.commit", "mlflow.source.git.branch", "mlflow.user")
"""Of MLflow's own tags those that may explain a difference."""


def differences_of(cards: Sequence[RunCard]) -> tuple[Difference, ...]:
    """Parameters first, then tags; those with the fewest different values first."""
    params = _differing([told_params(card) for card in cards], is_tag=False)
    tags = _differing([_told_tags(card.tags) for card in cards], is_tag=True)
    return (*params, *tags)


def told_params(card: RunCard) -> dict[str, str]:
    """The parameters that say what a run does."""
    return {name: value for name, value in card.params.items() if not IDENTITY.search(name)}


def _told_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in tags.items()
        if name in TAGS_THAT_SAY_SOMETHING or not name.startswith(("mlflow.", "stability."))
    }


def _differing(found: Sequence[Mapping[str, str]], *, is_tag: bool) -> list[Difference]:
    names = dict.fromkeys(name for each in found for name in each)
    rows = [Difference(name, tuple(each.get(name) for each in found), is_tag) for name in names]
    rows = [row for row in rows if len(set(row.values)) > 1]
    return sorted(rows, key=lambda row: (len(set(row.values)), row.name))
