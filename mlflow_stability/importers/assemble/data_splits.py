"""Reads on which data a row was measured where a field of the row says it: ``split``, ``phase``, a column ``dataset``.

In: the name of a field or of a list, and its text. Out: the word that says held-out data, and metrics' names with that
word in front. Guarantees: the text has to be such a word (``val``, ``validation set``): a data set called ``val2017``,
a phase ``warmup`` and a stage ``dev``, which may be where the code runs, say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from mlflow_stability.vocabulary.text import HELD_OUT, TRAIN, split_words

_LONGEST = 80
"""Of a longer text only so many characters are looked at."""
_OF_DATA = frozenset({"split", "mode", "phase", "stage", "set", "subset", "partition"})
"""Fields whose text begins with the word: ``valid set``."""
_OF_ANYTHING = frozenset({"type", "dataset", "kind", "event"})
"""Fields that say many things: every word of their text has to speak of held-out data."""
_BESIDE = frozenset({"data", "dataset", "log", "row", "metric", "name"})
"""Words of a field's name beside these: ``data_split``, ``log_type``."""
_OF_A_ROUND = frozenset(
    {"set", "data", "dataset", "split", "step", "epoch", "phase", "loop", "end", "ended", "log", "logs", "metrics"}
    | {"history", "results", "result", "stats", "curve", "losses", "loss"}
)
"""Words that may follow: ``val_epoch_end``, and ``val_history`` as the name of a list."""
_VERBS = {"validate": "val", "evaluate": "eval", "evaluating": "eval"}
"""What some frameworks call a round: Lightning's stage ``validate``."""
_SAYS_ITSELF = frozenset({"train", "training", "val", "valid", "validation", "eval", "test"})
"""A metric with one of these words in its name says itself on which data it was measured."""


@lru_cache(maxsize=4096)
def is_split(field: str) -> bool:
    """Whether a field of this name may say on which data its row was measured."""
    words = {word.lower() for word in split_words(field)}
    own = words & (_OF_DATA | _OF_ANYTHING)
    return bool(own) and words <= own | _BESIDE


@lru_cache(maxsize=4096)
def held_out_said(field: str, text: str) -> str:
    """The word for held-out data that the text of such a field is; empty where it says nothing of the kind."""
    fields = {word.lower() for word in split_words(field)}
    words = [_VERBS.get(word.lower(), word.lower()) for word in split_words(text[:_LONGEST])]
    if fields & _OF_DATA:
        return words[0] if words and words[0] in HELD_OUT and not ("stage" in fields and words[0] == "dev") else ""
    return _alone(words, HELD_OUT)


@lru_cache(maxsize=4096)
def part_said(text: str) -> str:
    """The word for a part of the data, trained on or held out, that the name of a list is: ``val_history``."""
    return _alone([word.lower() for word in split_words(text[:_LONGEST])], TRAIN | HELD_OUT)


def _alone(words: Sequence[str], parts: frozenset[str]) -> str:
    return words[0] if words and words[0] in parts and _OF_A_ROUND.issuperset(words[1:]) else ""


def held_out_in_row(row: Mapping[str, object]) -> str:
    """The word of the first field of a row that says that it was measured on held-out data."""
    for field, text in row.items():
        if isinstance(text, str) and is_split(field) and (word := held_out_said(field, text)):
            return word
    return ""


def measured_on(word: str, name: str) -> str:
    """How a metric of a row that was measured on such data is called."""
    return f"{word}/{name}" if word and not _says_itself(name) else name


@lru_cache(maxsize=4096)
def _says_itself(name: str) -> bool:
    return not _SAYS_ITSELF.isdisjoint(word.lower() for word in split_words(name))
