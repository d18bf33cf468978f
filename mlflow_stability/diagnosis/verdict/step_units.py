"""Calls the steps of findings what its log calls them: ``epoch 7`` where a log counts nothing but epochs.

In: findings in steps, and the log's word. Out: the same with that word in their messages. Guarantees: numbers stay as
they are; findings of a log that counts steps are unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from mlflow_stability.vocabulary.result import Episode

STEP = "step"
_BEFORE = re.compile(r"\b([Ss])tep(s?)(?= \d)")
_BEHIND = re.compile(r"(?<=\d )step(s?)\b")


def in_words_of_the_log(episodes: Iterable[Episode], unit: str) -> tuple[Episode, ...]:
    """The findings whose messages say what the log's reader would."""
    if unit == STEP:
        return tuple(episodes)

    def said(text: str) -> str:
        text = _BEFORE.sub(lambda found: (unit.capitalize() if found[1] == "S" else unit) + found[2], text)
        return _BEHIND.sub(lambda found: unit + found[1], text)

    return tuple(replace(episode, message=said(episode.message)) for episode in episodes)
