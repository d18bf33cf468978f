"""Checks for causes, what they can return, and the catalog of all causes and checks.

A file of this package that has `CAUSES` and `CHECKS` adds to the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from mlflow_stability.detectors.finding_type import Symptom, rendered
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.diagnosis.recorded_settings import RecordedSettings
from mlflow_stability.kinds.catalog import TYPES
from mlflow_stability.vocabulary.discovery import modules_of
from mlflow_stability.vocabulary.result import Cause, Remedy

CERTAINTIES = ("certain", "likely", "possible")  # from most to least certain


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check: at most one field is filled; none means that the check has nothing to report."""

    cause: Cause | None = None
    ruled_out: str = ""  # why it is not the cause, with numbers: "gradient norm: 0.9 to 1.2 just before, usually 1"
    not_checked: str = ""  # which data are missing or do not decide


@dataclass(frozen=True, slots=True)
class CauseType:
    name: str  # its name in programs, as in `Cause.name`
    meaning: str  # what has happened, in one sentence
    evidence: str  # how it is detected; ``{LIMITS.cuts}`` is a threshold of its file
    wrong: str  # when another cause looks the same
    remedies: tuple[Remedy, ...]  # most useful first
    helped_by_smaller_updates: bool = True  # whether a lower learning rate or clipping helps
    excluded_by: Callable[[RecordedSettings], str] | None = None
    """Return the recorded setting that excludes it, as a sentence; empty if none does."""
    phrase: str = ""  # its name in sentences; empty: the words of `name`


@dataclass(frozen=True, slots=True)
class Check:
    run: Callable[[EpisodeContext], CheckResult]
    order: Mapping[Symptom, int]
    """Symptoms that it is run for, and its position among their checks: of causes of the same certainty the first is
    named."""
    finds: frozenset[str] = frozenset()  # the causes that it can find: what it rules out is not reported beside these


def cause_found(
    name: str,
    statement: str,
    *evidence: str,
    since: int | None,
    certainty: str = "likely",
    place: str = "",
    remedies: tuple[Remedy, ...] = (),
    repeats: tuple[tuple[str, int], ...] = (),
) -> CheckResult:
    """Return a result that names the cause.

    ``since``: the first step at which its evidence is seen; None if it has no step of its own.
    ``repeats``: kind and step of reported findings whose sentences it repeats.
    """
    return CheckResult(
        Cause(
            name,
            statement,
            tuple(filter(None, evidence)),
            certainty=certainty,
            place=place,
            since=since,
            remedies=remedies,
            repeats=repeats,
        )
    )


def ruled_out(sentence: str) -> CheckResult:
    return CheckResult(ruled_out=sentence)


def not_checked(sentence: str) -> CheckResult:
    return CheckResult(not_checked=sentence)


@cache
def causes() -> Mapping[str, CauseType]:
    return {
        cause.name: replace(cause, evidence=" ".join(rendered(cause.evidence, {}, module.__name__).split()))
        for module in modules_of(__package__)
        for cause in getattr(module, "CAUSES", ())
    }


@cache
def symptoms() -> Mapping[str, Symptom]:
    """Return the symptom of each kind of finding whose causes are looked for."""
    return {finding_type.kind: finding_type.symptom for finding_type in TYPES if finding_type.symptom != Symptom.NONE}


@cache
def checks_of(kind: str) -> tuple[Check, ...]:
    symptom = symptoms().get(kind, Symptom.NONE)
    checks = [check for module in modules_of(__package__) for check in getattr(module, "CHECKS", ())]
    return tuple(sorted((check for check in checks if symptom in check.order), key=lambda check: check.order[symptom]))


def cause_phrase(name: str) -> str:
    """Return a cause's name in sentences: ``fp16 gradient overflow`` for ``fp16_scale``."""
    documentation = causes().get(name)
    return (documentation and documentation.phrase) or name.replace("_", " ")


def excluded(cause: str, settings: RecordedSettings) -> str:
    """Return the recorded setting that excludes a cause, as a sentence; empty if none does."""
    documentation = causes().get(cause)
    if documentation is None:
        raise ValueError(f"The cause {cause!r} is not in the catalog.")
    return "" if documentation.excluded_by is None else documentation.excluded_by(settings)
