"""What one look for a cause can end in: it is it, it was shown not to be it, or nobody can know.

A look that has no data, or whose data allow either, ends in the third; "ruled out" always says by what.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.diagnosis.causes.catalog import BY_NAME
from mlflow_stability.vocabulary.result.cause import Cause

CERTAINTIES = ("certain", "likely", "possible")
"""How sure a cause can be, the surest first."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result; exactly one of the three is filled."""

    cause: Cause | None = None
    ruled_out: str = ""
    """A sentence with the numbers that show it: "gradient norm: 0.9 to 1.2 just before, usually 1"."""
    unseen: str = ""
    """What was not logged, or does not tell, so that nothing can be said."""


def is_it(
    name: str,
    statement: str,
    *evidence: str,
    since: int | None,
    certainty: str = "likely",
    place: str = "",
    remedies: tuple[str, ...] = (),
) -> Look:
    """This is the cause; ``since``: the step from which on its evidence is seen, None for what has none of its own."""
    if name not in BY_NAME:
        raise ValueError(f"The cause {name!r} is not in the catalog, so nobody could look up what it means.")
    said = tuple(each for each in evidence if each)
    return Look(Cause(name, statement, said, certainty=certainty, place=place, since=since, remedies=remedies))


def is_not(sentence: str) -> Look:
    """This was shown not to be it."""
    return Look(ruled_out=sentence)


def not_seen(sentence: str) -> Look:
    """Nobody can know."""
    return Look(unseen=sentence)
