"""Facts are read back from JSON as they were written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

import pytest

from mlflow_stability import Severity
from mlflow_stability.journal.journal import decode, encode, unframe
from mlflow_stability.kinds.loss.loss_spike import SpikeFacts
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.tracking.artifacts import line_of, read_line
from mlflow_stability.vocabulary.facts import Facts, OtherFacts, TextEnum, classes_of_facts, facts_from_json
from mlflow_stability.vocabulary.result import Finding, read_remedies


class Colour(TextEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    least: float | None


@dataclass(frozen=True, slots=True)
class ExampleFacts(Facts):
    kind: ClassVar[str] = "example"

    colour: Colour
    value: float
    steps: int
    file: str | None
    parts: tuple[Part, ...]
    first: Part | None = None
    certain: bool = False

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return f"{self.colour} at {unit} {step}."


EXAMPLE = ExampleFacts(Colour.RED, math.inf, 3, "/a/b.pt", (Part("x", None), Part("y", 2.0)), Part("z", 0.5), True)


def test_json_has_plain_values_of_all_fields() -> None:
    assert json.loads(json.dumps(EXAMPLE.as_json(), allow_nan=False)) == {
        "kind": "example",
        "colour": "red",
        "value": "inf",
        "steps": 3,
        "file": "/a/b.pt",
        "parts": [{"name": "x", "least": None}, {"name": "y", "least": 2.0}],
        "first": {"name": "z", "least": 0.5},
        "certain": True,
    }


def test_facts_are_read_back_and_unknown_fields_are_ignored() -> None:
    values = json.loads(json.dumps(EXAMPLE.as_json()))
    assert facts_from_json(values) == EXAMPLE
    assert facts_from_json({**values, "added_later": 1}) == EXAMPLE
    assert facts_from_json({name: value for name, value in values.items() if name != "certain"}).sentence(4)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "unheard_of", "value": 2},
        {"kind": "example", "colour": "blue"},
        {"kind": "example"},
        {},
        EXAMPLE.as_json() | {"steps": "three"},
        EXAMPLE.as_json() | {"certain": 1},
        EXAMPLE.as_json() | {"parts": 3},
    ],
)
def test_facts_of_other_versions_are_kept_as_they_are(values: dict[str, object]) -> None:
    facts = facts_from_json(values)
    assert isinstance(facts, OtherFacts)
    assert facts.as_json() == values
    assert facts == facts_from_json(dict(values))
    assert hash(facts) == hash(facts_from_json(dict(values)))


def test_numbers_are_those_of_the_fields() -> None:
    assert EXAMPLE.numbers() == {"value": math.inf, "steps": 3.0, "first.least": 0.5}
    assert OtherFacts({"loss": 2, "why": "x", "sure": True}).numbers() == {"loss": 2.0}


@pytest.mark.parametrize("facts", [EXAMPLE, NonFiniteFacts("loss", math.nan, 0.5), OtherFacts({"kind": "new"})])
def test_journal_and_artifact_keep_the_facts_of_an_event(facts: Facts) -> None:
    event = Finding.at(facts, 7, Severity.WARNING, kind="example")
    read = decode(unframe(encode(event).rstrip(b"\n")))
    assert isinstance(read, Finding)
    again = read_line(line_of(event))
    assert isinstance(again, Finding)
    assert repr(read.facts) == repr(again.facts) == repr(facts)


def test_an_event_of_facts_has_their_sentence_and_numbers() -> None:
    event = Finding.at(EXAMPLE, 7, Severity.WARNING, place="layer", remedies=read_remedies(("Do it.",)), attempt=1)
    assert (event.kind, event.message, event.place, event.attempt) == ("example", "red at step 7.", "layer", 1)
    assert event.metrics == EXAMPLE.numbers()
    assert event.facts is EXAMPLE
    assert [str(remedy) for remedy in event.remedies] == ["Do it."]


def test_sentence_of_a_spike_follows_what_is_known() -> None:
    spike = SpikeFacts(7.5, 0.5, 18.8, 8.0)
    assert spike.sentence(400) == "loss 7.5 at step 400, 18.8σ above its baseline of 0.5 (threshold 8σ)."


def test_metrics_are_fields_of_their_facts() -> None:
    classes = [cls for cls in classes_of_facts().values() if cls.__module__.startswith("mlflow_stability.")]
    assert len(classes) > 40
    for cls in classes:
        metrics = cls.metrics.values() if isinstance(cls.metrics, Mapping) else cls.metrics
        assert {name.partition(".")[0] for name in metrics} <= {field.name for field in fields(cls)}, cls.__name__
