"""Every cause that can be named, and where to look for it: `CAUSES` and `CHECKS` of the files of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.rendered_numbers import rendered
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check
from mlflow_stability.diagnosis.parameters.recorded_settings import RecordedSettings
from mlflow_stability.kinds.catalog import TYPES
from mlflow_stability.vocabulary.discovery import modules_of


@cache
def causes() -> Mapping[str, CauseDocumentation]:
    """Every cause by its name, file by file."""
    return {
        cause.name: replace(cause, evidence=" ".join(rendered(cause.evidence, {}, module.__name__).split()))
        for module in modules_of(__package__)
        for cause in getattr(module, "CAUSES", ())
    }


@cache
def symptoms() -> Mapping[str, Symptom]:
    """What each type of finding looks like, of those whose causes are looked for."""
    return {each.kind: each.symptom for each in TYPES if each.symptom is not Symptom.NONE}


@cache
def checks_of(kind: str) -> tuple[Check, ...]:
    """Where to look for the cause of a finding, in the order in which causes of the same certainty are believed."""
    symptom = symptoms().get(kind, Symptom.NONE)
    every = [each for module in modules_of(__package__) for each in getattr(module, "CHECKS", ())]
    return tuple(sorted((each for each in every if symptom in each.asked), key=lambda each: each.asked[symptom]))


def cause_phrase(name: str) -> str:
    """A cause as sentences name it: ``fp16 gradient overflow`` for ``fp16_scale``."""
    known = causes().get(name)
    return known.phrase if known is not None and known.phrase else name.replace("_", " ")


def excluded(cause: str, settings: RecordedSettings) -> str:
    """By which recorded setting a cause is excluded, as a sentence; empty: by none."""
    known = causes().get(cause)
    if known is None:
        raise ValueError(f"The cause {cause!r} is not in the catalog.")
    return known.excluded_by(settings) if known.excluded_by is not None else ""
