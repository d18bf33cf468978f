"""Makes the card of one thing that was asked for: reads it, judges it, condenses it.

In: a run id or a path. Out: its card, or those of all runs at that path. Guarantees: what cannot be read, or judged, is
a card that says so, so that one bad run does not end a comparison of a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mlflow_stability.analysis.asked_for import asked_for
from mlflow_stability.analysis.diagnose import concluded, histories_of, in_place
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.errors import StabilityError
from mlflow_stability.kinds.catalog import read_detectors
from mlflow_stability.vocabulary.result import AskedCurves, RunCard, card_to_json
from mlflow_stability.vocabulary.run import RunHistory


def cards_at(
    source: str,
    tracking_uri: str | None = None,
    detectors: Sequence[Detector] | None = None,
    curves: AskedCurves | None = None,
) -> Iterator[RunCard]:
    """The cards of everything there; one at least."""
    try:
        histories = histories_of(asked_for(source, tracking_uri), tracking_uri)
    except StabilityError as error:
        yield RunCard(source, source, error=str(error))
        return
    except Exception as error:  # a mistake of ours, or of a store's plugin, about one run
        yield RunCard(source, source, error=_unexpected("read", error))
        return
    for history in histories:
        yield _card(history, detectors, curves)


def texts_at(
    source: str, tracking_uri: str | None, detectors: str | None, curves: Sequence[str] = ("", "")
) -> list[str]:
    """The same as texts, with detectors as `catalog.described` wrote them: for another process."""
    asked = None if detectors is None else read_detectors(detectors)
    return [card_to_json(card) for card in cards_at(source, tracking_uri, asked, AskedCurves(*curves))]


def _card(history: RunHistory, detectors: Sequence[Detector] | None, curves: AskedCurves | None) -> RunCard:
    from mlflow_stability.diagnosis.run_card import run_card_of

    try:
        history = in_place(history, curves)
        card = run_card_of(history, concluded(history, detectors))
        return replace(card, source=history.source)
    except StabilityError as error:
        return RunCard(history.source, history.name, error=str(error))
    except Exception as error:  # likewise
        return RunCard(history.source, history.name, error=_unexpected("judged", error))


def _unexpected(what: str, error: Exception) -> str:
    return f"It could not be {what}: unexpected {type(error).__name__}, {error}. Please report it."
