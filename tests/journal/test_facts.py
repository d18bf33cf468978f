from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.journal.journal import decode, encode, unframe
from mlflow_stability.tracking.artifacts import line_of, read_line
from mlflow_stability.vocabulary.run import Fact

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT, TEXT, st.integers(0, 2**40), st.floats(0, 1e10))
def test_a_fact_is_read_back_unchanged(key: str, value: str, step: int, time: float) -> None:
    fact = Fact(key, value, step, time)
    assert decode(unframe(encode(fact).rstrip(b"\n"))) == fact
    assert read_line(line_of(fact)) == fact


def test_an_unknown_kind_of_record_is_skipped() -> None:
    assert decode(["something new", {"key": "x"}]) is None
