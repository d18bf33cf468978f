"""Knows what guessing costs: the cross-entropy of a uniform guess among so many classes is the logarithm of it.

In: a loss, and the number of classes where a setting names it. Out: the number of classes among which guessing costs as
much. Of numbers that no setting names only a few count: the logarithm of some number is near to any loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mlflow_stability.detectors.loss_level import SMALL_CLASS_COUNTS, USUAL_CLASS_COUNTS

TOLERANCE, OF_MANY = 0.012, 0.004
"""How far a loss may be from the cost of guessing among few classes, or as many as a setting names, and among many."""
NAMES = frozenset(
    (
        *("vocab_size", "vocabulary_size", "n_vocab", "num_vocab"),
        *("num_classes", "n_classes", "num_class", "nclass", "num_labels", "n_labels"),
    )
)
"""What the settings are called that give the number of classes."""


def chance_of(loss: float, known: Iterable[int] = ()) -> int:
    """The number of classes among which guessing costs this loss; 0 where it is not known for being such a level."""
    named = frozenset(known)
    aways = [
        (abs(loss / math.log(classes) - 1), classes) for classes in (*named, *SMALL_CLASS_COUNTS, *USUAL_CLASS_COUNTS)
    ]
    few = (*named, *SMALL_CLASS_COUNTS)
    near = [(away, classes) for away, classes in aways if away < (TOLERANCE if classes in few else OF_MANY)]
    return min(near, key=lambda each: (each[1] not in named, each[0]))[1] if near else 0


def classes_in(params: Mapping[str, str]) -> tuple[int, ...]:
    """The numbers of classes that the settings of a run name."""
    found = [value for key, value in params.items() if key.replace("/", ".").rpartition(".")[2].lower() in NAMES]
    return tuple(int(each) for each in found if each.isdecimal() and 1 < int(each) < 10_000_000)
