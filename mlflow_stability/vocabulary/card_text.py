"""Writes a run's card as one line of JSON and reads it back: for a cache on disk, for a process that works for us.

In: a `RunCard`, or the text of one. Out: the other. Promised: what comes back is equal to what went in, infinities and
not-a-numbers included; a text that is no card is a ``ValueError``, whatever is wrong with it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from mlflow_stability.vocabulary.diagnosis import Sketch
from mlflow_stability.vocabulary.event import Severity
from mlflow_stability.vocabulary.run_card import Course, Mark, RunCard

_NAMES = {each.name for each in fields(RunCard)}


def text_of(card: RunCard) -> str:
    """The card as text."""
    return json.dumps(asdict(card), separators=(",", ":"))


def card_of(text: str) -> RunCard:
    """The card that a text was made of."""
    try:
        return _card(json.loads(text))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"This is no card of a run: {error!r}") from error


def _card(found: dict[str, Any]) -> RunCard:
    if set(found) != _NAMES:
        raise ValueError("This is no card of a run, or one of another version.")
    sketch, course = found["sketch"], found["course"]
    return RunCard(
        **{
            **found,
            "severity": Severity(found["severity"]),
            "marks": tuple(Mark(**{**each, "severity": Severity(each["severity"])}) for each in found["marks"]),
            "course": None if course is None else Course(**_tuples(course)),
            "sketch": None if sketch is None else Sketch(**_tuples(sketch)),
            "spikes_in_divergence": tuple(found["spikes_in_divergence"]),
            "notes": tuple(found["notes"]),
            "cannot_tell": tuple(found["cannot_tell"]),
        }
    )


def _tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
