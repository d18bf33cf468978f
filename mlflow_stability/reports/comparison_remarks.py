"""What has to be remarked upon beside a comparison: mostly that a run could not be read as it should be.

In: a comparison. Out: sentences. Promised: each remark once, with the runs that it is about.
"""

from __future__ import annotations

from mlflow_stability.vocabulary.comparison import Comparison
from mlflow_stability.vocabulary.counted import counted
from mlflow_stability.vocabulary.diagnosis import JUDGED_LIVE

FEW_NAMES, MOST = 3, 8


def remarks(comparison: Comparison) -> list[str]:
    """What was remarked upon while these runs were read and compared."""
    about: dict[str, list[str]] = {}
    for card in comparison.cards:
        for note in card.notes:
            if note != JUDGED_LIVE:
                about.setdefault(note, []).append(card.name or card.source)
    told = [
        f"{', '.join(names) if len(names) <= FEW_NAMES else counted(len(names), 'run')}: {note}"
        for note, names in about.items()
    ]
    more = [f"{counted(len(told) - MOST, 'more remark')} on single runs."] if len(told) > MOST else []
    return [*comparison.notes, *told[:MOST], *more]
