"""Finds and names the models of a script."""

from __future__ import annotations

from mlflow_stability.probes.objects.model_discovery import (
    ZERO,
    covering,
    first_place,
    living,
    models_of,
    outermost,
    parameters_in,
    places_of,
    remembered,
    schedules_of,
    state_of,
)
from mlflow_stability.probes.objects.module_names import names_of_modules, plain_name, unwrapped
from mlflow_stability.probes.objects.object_memory import Kind, ObjectMemory

__all__ = [
    "ZERO",
    "Kind",
    "ObjectMemory",
    "covering",
    "first_place",
    "living",
    "models_of",
    "names_of_modules",
    "outermost",
    "parameters_in",
    "places_of",
    "plain_name",
    "remembered",
    "schedules_of",
    "state_of",
    "unwrapped",
]
