"""What one look for a cause can end in: it is it, it is not it, or it cannot be seen."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.cause import Cause

CERTAINTIES = ("certain", "likely", "possible")
"""How sure a cause can be, the surest first."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result; exactly one of the three is filled."""

    cause: Cause | None = None
    ruled_out: str = ""
    """A sentence with numbers: "learning rate: constant at 0.0003"."""
    unseen: str = ""
    """What was not logged, so that nothing can be said."""


def is_it(
    name: str,
    statement: str,
    *evidence: str,
    certainty: str = "likely",
    place: str = "",
    remedies: tuple[str, ...] = (),
) -> Look:
    """This is the cause."""
    said = tuple(each for each in evidence if each)
    return Look(Cause(name, statement, said, certainty=certainty, place=place, remedies=remedies))


def is_not(sentence: str) -> Look:
    """This is not it."""
    return Look(ruled_out=sentence)


def not_seen(sentence: str) -> Look:
    """Nobody can know."""
    return Look(unseen=sentence)
