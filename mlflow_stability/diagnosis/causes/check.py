"""What one look for a cause can end in: it is it, it was shown not to be it, or nobody can know.

A look that has no data, or whose data allow either, ends in the third; "ruled out" always says by what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.diagnosis.parameters.recorded_settings import RecordedSettings
from mlflow_stability.vocabulary.result import Cause, Remedy

CERTAINTIES = ("certain", "likely", "possible")
"""How sure a cause can be, the surest first."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result; exactly one of the three is filled."""

    cause: Cause | None = None
    ruled_out: str = ""
    """A sentence with the numbers that show it: "gradient norm: 0.9 to 1.2 just before, usually 1"."""
    unseen: str = ""
    """What was not logged, or does not tell, so that nothing can be said."""


@dataclass(frozen=True, slots=True)
class CauseDocumentation:
    """What is to be said of one cause."""

    name: str
    """The word for programs, as `Cause.name` has it."""
    meaning: str
    """What has happened, in one sentence."""
    evidence: str
    """What is seen of it; ``{LIMITS.cuts}`` is a threshold of its file, as in docstrings of detectors."""
    wrong: str
    """When another cause looks the same."""
    remedies: tuple[Remedy, ...]
    """What goes against it, most useful first."""
    helped_by_smaller_updates: bool = True
    """Whether a lower learning rate, or clipping, does anything about it."""
    excluded_by: Callable[[RecordedSettings], str] | None = None
    """By which recorded setting it is excluded, as a sentence; an empty one: by none."""
    phrase: str = ""
    """Its name in sentences; empty: the words of `name`."""


@dataclass(frozen=True, slots=True)
class Check:
    """One place to look for causes."""

    look: Callable[[EpisodeContext], CheckResult]
    asked: Mapping[Symptom, int]
    """For which symptoms, and where among the others: of causes of the same certainty the first is believed."""
    finds: frozenset[str] = frozenset()
    """Which causes it can find: where another check has found the same, it says nothing against it."""


def is_it(
    name: str,
    statement: str,
    *evidence: str,
    since: int | None,
    certainty: str = "likely",
    place: str = "",
    remedies: tuple[Remedy, ...] = (),
    repeats: tuple[tuple[str, int], ...] = (),
) -> CheckResult:
    """This is the cause; ``since``: the step from which on its evidence is seen, None for what has none of its own.

    ``repeats``: type and step of reported findings whose sentences it repeats.
    """
    return CheckResult(
        Cause(
            name,
            statement,
            tuple(each for each in evidence if each),
            certainty=certainty,
            place=place,
            since=since,
            remedies=remedies,
            repeats=repeats,
        )
    )


def is_not(sentence: str) -> CheckResult:
    """This was shown not to be it."""
    return CheckResult(ruled_out=sentence)


def not_seen(sentence: str) -> CheckResult:
    """Nobody can know."""
    return CheckResult(unseen=sentence)
