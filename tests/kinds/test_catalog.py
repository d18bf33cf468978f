from __future__ import annotations

import inspect
import math
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.detectors.detector import Point
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import (
    DETECTORS,
    KINDS,
    ON_REQUEST,
    SEEN_FROM_OUTSIDE,
    choose_detectors,
    default_detectors,
    describe,
    detectors_named,
    documentation,
    name_of,
    read_detectors,
)
from mlflow_stability.kinds.documentation import PARAGRAPHS
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.vocabulary.result import Severity

EVERY = (*DETECTORS, *ON_REQUEST)
DOCUMENTED = [*(name_of(item) for item in EVERY), *(finding.kind for finding in SEEN_FROM_OUTSIDE)]


def test_every_name_is_there_once() -> None:
    assert len(set(DOCUMENTED)) == len(DOCUMENTED)
    assert len(set(KINDS)) == len(KINDS)


def test_the_twelve_first_kinds_are_there_and_not_experimental() -> None:
    first = "nan_detected inf_detected loss_spike divergence gradient_explosion gradient_vanishing plateau overfitting"
    first += " loss_scale_collapse step_skipped learning_rate_jump stall crashed killed out_of_memory"
    assert set(first.split()) <= set(KINDS)
    assert not any(documentation(kind).experimental for kind in first.split())


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_kind_is_documented_in_full(name: str) -> None:
    documents = documentation(name)
    assert documents.name == name
    assert documents.sentence.endswith(".")
    for text in (documents.sees, documents.why, documents.try_, documents.wrong, documents.reference):
        assert len(text) > 10
    assert documents.severities == tuple(sorted(documents.severities)) != ()
    assert documents.remedies
    assert all(threshold.meaning.endswith((".", "...")) for threshold in documents.thresholds)


@pytest.mark.parametrize("judgement", [*EVERY, *SEEN_FROM_OUTSIDE], ids=DOCUMENTED)
def test_a_docstring_has_exactly_these_paragraphs(judgement: type) -> None:
    paragraphs = (inspect.getdoc(judgement) or "").split("\n\n")
    paragraphs = [paragraph.partition(":")[0] for paragraph in paragraphs[1:]]
    assert paragraphs == list(PARAGRAPHS), f"the docstring of {judgement.__name__} needs these paragraphs"


@pytest.mark.parametrize("detector", EVERY, ids=[name_of(item) for item in EVERY])
def test_a_detector_is_frozen_and_has_numbers_for_thresholds(detector: type) -> None:
    made: Any = detector()
    assert is_dataclass(detector)
    assert all(isinstance(getattr(made, field.name), (int, float)) for field in fields(detector))
    assert set(made.compared) <= set(made.quantities)


@pytest.mark.parametrize("detector", EVERY, ids=[name_of(item) for item in EVERY])
def test_a_bare_point_can_be_shown_to_every_detector(detector: Any) -> None:
    made = detector()
    for value in (0.0, -1.0, 1e308, math.nan, math.inf):
        finite = math.isfinite(value)
        state = made.begin()
        for step, quantity in product(range(3), made.quantities):
            state, event = made.step(state, Point(quantity, "", step, value, finite=finite, accepted=finite))
            assert event is None or event.kind == made.kind, value


def test_default_detectors_can_be_asked_for_without_the_experimental_ones() -> None:
    assert len(default_detectors()) == len(DETECTORS)
    assert {detector.experimental for detector in default_detectors(experimental=False)} == {False}


def test_detectors_are_built_by_name_in_the_order_of_the_names() -> None:
    assert [name_of(item) for item in detectors_named(("loss_spike:classic", "nan_detected"))] == [
        "loss_spike:classic",
        "nan_detected",
    ]


@pytest.mark.parametrize("call", [lambda name: detectors_named((name,)), documentation], ids=["named", "documentation"])
def test_an_unknown_name_is_refused_with_the_close_ones(call: Any) -> None:
    with pytest.raises(SettingsError, match="There is no detector 'los_spike'; did you mean loss_spike"):
        call("los_spike")
    with pytest.raises(SettingsError, match="there are nan_detected, inf_detected"):
        call("zzz")


def test_thresholds_follow_the_name_of_a_detector_or_its_class_in_parentheses() -> None:
    (detector,) = choose_detectors(["LossSpike(threshold=10, calm_steps=4)"], sensitivity="low")
    assert detector == LossSpike(threshold=10, calm_steps=4)
    assert detectors_named(["loss_spike(threshold=10)"]) == (LossSpike(threshold=10),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LossSpike(10)", "are written as LossSpike"),
        ("LossSpike(threshold=1", "are written as LossSpike"),
        ("LossSpike(threshold=print())", "are written as LossSpike"),
        ("LossSpike(threshold='a')", "must be a number"),
        ("LossSpike(thresh=1)", "has no threshold 'thresh'"),
        ("LosSpike(threshold=1)", "did you mean"),
    ],
)
def test_thresholds_that_are_no_numbers_are_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        choose_detectors([text])


def test_a_way_to_end_can_be_explained_but_not_built() -> None:
    assert documentation("killed").severities == (Severity.CRITICAL,)
    with pytest.raises(SettingsError):
        detectors_named(("killed",))


@given(st.data())
def test_what_is_described_is_built_again(data: st.DataObject) -> None:
    chosen = []
    for function in data.draw(st.lists(st.sampled_from(EVERY), max_size=6)):
        made: Any = function()
        changed = {}
        for threshold in data.draw(st.lists(st.sampled_from(fields(made)), max_size=3)) if fields(made) else []:
            usual = getattr(made, threshold.name)
            number = st.integers(0, 10**6) if isinstance(usual, int) else st.floats(allow_nan=False)
            changed[threshold.name] = data.draw(number)
        chosen.append(replace(made, **changed))
    assert read_detectors(describe(chosen)) == tuple(chosen)


def test_a_description_of_an_earlier_version_is_built() -> None:
    detectors = detectors_named(["nan_detected", "equal_weights"])
    assert read_detectors('[["nan_detected",{}],["equal_weights",{}]]') == detectors
    assert describe(detectors) == '["nan_detected","equal_weights"]'


def test_the_description_names_every_threshold() -> None:
    (loss_spike,) = detectors_named(["loss_spike"])
    for field in fields(loss_spike):  # type: ignore[arg-type]
        assert f'"{field.name}":' in describe([loss_spike])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}x",
        "[1]",
        '[[["nan_detected"], {}]]',
        '[["loss_spike", 7]]',
        '[["loss_spike", {"no": 1}]]',
        '[["nothing", {}]]',
        "null",
    ],
)
def test_what_describes_no_detectors_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        read_detectors(text)
