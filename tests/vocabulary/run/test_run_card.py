from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.vocabulary.result import LossLevels, Mark, RunCard, Severity, Sketch, card_from_json, card_to_json

numbers = st.floats(allow_nan=False)
steps = st.integers(0, 10**9)
marks = st.builds(Mark, st.text(), st.sampled_from(Severity), steps, steps, st.none() | st.booleans())
cards = st.builds(
    RunCard,
    source=st.text(),
    name=st.text(),
    params=st.dictionaries(st.text(), st.text(), max_size=3),
    severity=st.sampled_from(Severity),
    marks=st.lists(marks, max_size=3).map(tuple),
    onset=st.none() | steps,
    final_loss=st.none() | numbers,
    course=st.none() | st.builds(LossLevels, st.lists(steps, max_size=3).map(tuple), st.just((1.5,)), numbers),
    sketch=st.none()
    | st.builds(Sketch, st.text(), st.lists(steps, max_size=3).map(tuple), st.just((1.0,)), st.just((math.inf,))),
    notes=st.lists(st.text(), max_size=2).map(tuple),
    error=st.text(),
)


@given(cards)
def test_a_card_comes_back_from_its_text(card: RunCard) -> None:
    assert card_from_json(card_to_json(card)) == card


def test_a_final_loss_that_is_no_number_comes_back_as_such() -> None:
    final = card_from_json(card_to_json(RunCard("a", final_loss=math.nan))).final_loss
    assert final is not None
    assert math.isnan(final)


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"source": 1}', "[" * 100_000, "\x00"])
def test_text_that_is_no_card_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        card_from_json(text)


def test_a_card_with_an_unknown_severity_is_refused() -> None:
    damaged = {**json.loads(card_to_json(RunCard("a"))), "severity": 11}
    with pytest.raises(ValueError, match="11"):
        card_from_json(json.dumps(damaged))
