"""Reads what the event `nan_origin` says of the first number that is not finite.

In: the surroundings of an episode. Out: the event of its step, its sentence, and whether numbers overflowed there.
"""

from __future__ import annotations

from mlflow_stability.diagnosis.surroundings import Surroundings, shown
from mlflow_stability.vocabulary.event import Event
from mlflow_stability.vocabulary.sentence import capitalised

KIND = "nan_origin"
NEAR = 2
"""What broke at most so many steps later is the same."""
ABSURD = 1e15
"""Numbers beyond this are not reached by one step of a training that was sound."""
MODEST = 10.0
"""Numbers up to this overflow in no type: an infinity that comes of them is one of an operation that is not defined."""
SOURCES = ("input", "weight", "buffer", "optimizer", "forward", "backward", "loss", "elsewhere")


def origin_near(around: Surroundings) -> Event | None:
    """The event that says where the first number that is not finite was born; None: it was not looked for."""
    return next((each for each in around.said(KIND) if near(around, each)), None)


def near(around: Surroundings, event: Event) -> bool:
    """Whether an event belongs to the beginning of the episode."""
    return around.episode.start <= event.step <= around.episode.start + NEAR


def source_of(origin: Event) -> str:
    """One of `SOURCES`."""
    return next((each for each in SOURCES if f"from.{each}" in origin.evidence), "elsewhere")


def said_of(message: str) -> str:
    """The event's sentence without its step."""
    _, _, said = message.partition(": ")
    return capitalised(said) if said else message


def range_of(origin: Event) -> str:
    """What went into the operation, in words; empty where it is not known."""
    low, high = origin.evidence.get("input.least"), origin.evidence.get("input.greatest")
    return "" if low is None or high is None else f"from {shown(low)} to {shown(high)}"


def overflowed(origin: Event) -> bool:
    """Whether large finite numbers went in and exceeded what the type can hold; told by the numbers where not said."""
    evidence = origin.evidence
    if "overflow" in evidence:
        return evidence["overflow"] == 1.0
    if source_of(origin) != "forward":
        return False
    known = [abs(evidence[key]) for key in ("input.least", "input.greatest") if key in evidence]
    infinite = evidence.get("output.inf", 0.0) > 0 and evidence.get("output.nan", 0.0) == 0
    return max(known, default=MODEST) >= (MODEST if infinite else ABSURD)
