from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.vocabulary.text.phrases import visible


@given(st.text(), st.integers(1, 20))
def test_whatever_is_shown_is_printable_and_no_longer_than_allowed(text: str, longest: int) -> None:
    shown = visible(text, longest)
    assert shown.isprintable()
    assert len(shown) <= longest


def test_what_moves_a_cursor_is_written_out() -> None:
    assert visible("a\x1b[31m\n\u202eb\u00a0c") == "a\\x1b[31m\\n\\u202eb c"
