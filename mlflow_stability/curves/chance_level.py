"""Find the number of classes for which a loss is at chance level, which is the logarithm of that number.

Of numbers that no setting names only a few count: the logarithm of some number is near to any loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mlflow_stability.detectors.loss_level import SMALL_CLASS_COUNTS, USUAL_CLASS_COUNTS
from mlflow_stability.vocabulary.text.foreign_names import word_set

TOLERANCE, TOLERANCE_OF_MANY = 0.012, 0.004
"""How far a loss may be from the cost of guessing among few classes, or as many as a setting names, and among many."""
CLASS_SETTINGS = word_set(
    "vocab_size vocabulary_size n_vocab num_vocab num_classes n_classes num_class nclass num_labels n_labels"
)
"""Names of settings that give the number of classes."""


def classes_at_chance(loss: float, recorded: Iterable[int] = ()) -> int:
    """Return the number of classes for which this loss is chance level, recorded ones first; 0 for no such number."""
    recorded = frozenset(recorded)
    candidates = []
    for classes in (*recorded, *SMALL_CLASS_COUNTS, *USUAL_CLASS_COUNTS):
        distance = abs(loss / math.log(classes) - 1)
        is_likely = classes in recorded or classes in SMALL_CLASS_COUNTS
        if distance < (TOLERANCE if is_likely else TOLERANCE_OF_MANY):
            candidates.append((classes not in recorded, distance, classes))
    return min(candidates)[2] if candidates else 0


def recorded_classes(params: Mapping[str, str]) -> tuple[int, ...]:
    """Return the numbers of classes in the settings of a run."""
    values = [
        value for key, value in params.items() if key.replace("/", ".").rpartition(".")[2].lower() in CLASS_SETTINGS
    ]
    return tuple(int(value) for value in values if value.isdecimal() and 1 < int(value) < 10_000_000)
