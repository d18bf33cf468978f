"""Series to be judged, and the short way to have them judged."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from mlflow_stability.kinds.catalog import detectors_named
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.facts import facts_from_json
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding

Floats = NDArray[np.float64]


def readings(series: Mapping[str, Sequence[float] | Floats], first_step: int = 0) -> list[StepReading]:
    """One reading a step; None leaves a value out. As in a training, readings with the same signals share a tuple."""
    signals = [Signal.parse(name) for name in series]
    shared: dict[tuple[bool, ...], tuple[Signal, ...]] = {}
    result = []
    for offset, row in enumerate(zip(*series.values(), strict=True)):
        there = tuple(value is not None for value in row)
        if there not in shared:
            shared[there] = tuple(itertools.compress(signals, there))
        values = tuple(float(value) for value in row if value is not None)
        result.append(StepReading(first_step + offset, shared[there], values))
    return result


def judged(names: str | None = None, /, **series: Sequence[float] | Floats) -> list[Finding]:
    """What the detectors of these names find; all of them if none is named."""
    events = replay(readings(series), None if names is None else detectors_named(names.split()))
    for event in events:
        check_facts(event)
    return events


def check_facts(event: Finding) -> None:
    """Facts have the sentence and the numbers of their event, and are read back from JSON as they were."""
    facts = event.facts
    assert facts.sentence(event.step) == event.message
    assert event.metrics == pytest.approx(facts.numbers(), nan_ok=True)
    assert repr(facts_from_json(json.loads(json.dumps(facts.as_json(), allow_nan=False)))) == repr(facts)
    assert "epoch" in facts.sentence(event.step, "epoch")


def noise(seed: int, steps: int, width: float = 1.0) -> Floats:
    return width * np.random.default_rng(seed).standard_normal(steps)


def decaying(steps: int, low: float = 1.5, high: float = 4.5, over: float = 150.0) -> Floats:
    """A loss that falls from one level to another."""
    return low + (high - low) * np.exp(-np.arange(steps) / over)


def at(values: Floats, step: int, factor: float, steps: int = 1) -> Floats:
    """The same with some values multiplied."""
    changed = values.copy()
    changed[step : step + steps] *= factor
    return changed
