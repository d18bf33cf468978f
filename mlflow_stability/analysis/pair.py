"""Looks at two runs closer than a comparison of many does: where they part, and their layers beside each other.

In: the cards of the two, and where they live. Out: a `Pair`. Guarantees: the runs are read one after the other, and of
each only its curves and a few hundred columns by layer are kept; a run that cannot be read any more costs no more than
this part of the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow_stability.analysis.diagnose import history_of
from mlflow_stability.diagnosis.two_runs import (
    BY_LAYER,
    LayerCourse,
    StepColumns,
    lacking,
    layer_courses,
    layers_beside,
    step_columns_of,
)
from mlflow_stability.errors import StabilityError
from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.measured import LayerComparison
from mlflow_stability.vocabulary.result import AskedCurves, FirstDifference, RunCard
from mlflow_stability.vocabulary.run import RunHistory


@dataclass(frozen=True, slots=True)
class Pair:
    """What is known of two runs beside what their cards say."""

    first_difference: FirstDifference | None = None
    layers: tuple[LayerComparison, ...] = ()
    lacking: tuple[str, ...] = ()
    """What could not be laid beside each other, and why."""


def pair_of(cards: Sequence[RunCard], tracking_uri: str | None = None, curves: AskedCurves | None = None) -> Pair:
    """The two, in the order of the cards; nothing for any other number of them."""
    if len(cards) != 2 or not all(card.readable for card in cards):
        return Pair()
    from mlflow_stability.diagnosis.two_runs import first_difference_of

    first, second = cards
    columns = step_columns_of(first, second)
    try:
        one, courses = _read(first, tracking_uri, None if columns is None else columns[0], curves)
        other, theirs = _read(second, tracking_uri, None if columns is None else columns[1], curves)
        first_difference = first_difference_of(one, other)
        if columns is None:
            return Pair(first_difference)
        names = (first.name or first.source, second.name or second.source)
        beside = layers_beside(courses, theirs, columns, (first, second))
        return Pair(first_difference, beside, tuple(lacking(courses, theirs, names)))
    except StabilityError as error:  # one was deleted meanwhile, or is one of several runs in a file
        return Pair(lacking=(f"The two runs could not be compared step by step: {error}",))
    except Exception as error:  # a mistake of ours must not take with it what is known of either
        what = f"unexpected {type(error).__name__}, {error}"
        return Pair(lacking=(f"The two runs could not be compared step by step: {what}. Please report it.",))


def _read(
    card: RunCard, tracking_uri: str | None, columns: StepColumns | None, curves: AskedCurves | None
) -> tuple[RunHistory, Mapping[str, LayerCourse]]:
    """The run without what it has by layer, and that in columns."""
    history = history_of(card.source, tracking_uri, curves)
    courses = {} if columns is None else layer_courses(history, columns, _is_layer)
    kept = tuple(each for each in history.metrics if not _by_layer(each.meaning.quantity, each.meaning.place))
    return replace(history, metrics=kept), courses


def _by_layer(quantity: str, place: str) -> bool:
    return quantity in BY_LAYER and _is_layer(place)


def _is_layer(place: str) -> bool:
    return place != "" and not is_group(place)
