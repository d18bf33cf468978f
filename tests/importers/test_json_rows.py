from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history

from mlflow_stability.importers.json_rows import close_document

ROWS = [{"epoch": n / 9, "loss": 1.5, "said": 'a "]" \\ }', "step": n * 10} for n in range(40)]
STATE = {"best_metric": None, "log_history": ROWS, "max_steps": 400}


def test_of_a_trainers_state_that_was_cut_off_the_whole_rows_are_read(tmp_path: Path) -> None:
    run = history(tmp_path, json.dumps(STATE, indent=2)[:-300])
    assert run.format == "trainer_state"
    assert curve(run, "loss") == [(n * 10, 1.5) for n in range(len(curve(run, "loss")))]
    assert len(curve(run, "loss")) > 30
    assert "truncated" in run.notes[0]


def test_lists_by_name_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    run = history(tmp_path, json.dumps({"loss": [3.0, 2.0, 1.0], "val_loss": [4.0, 3.0, 25.0]})[:-4])
    assert [value for _, value in curve(run, "loss")] == [3.0, 2.0, 1.0]
    assert [value for _, value in curve(run, "val_loss")] == [4.0, 3.0]


@given(st.integers(0, len(json.dumps(STATE)) - 1))
def test_wherever_it_is_cut_only_whole_rows_are_left(place: int) -> None:
    text = close_document(json.dumps(STATE)[:place])
    if text is not None:
        rows = json.loads(text)["log_history"]
        assert rows == ROWS[: len(rows)]


@given(st.text('[]{},"\\1a: ', max_size=40))
def test_any_text_is_closed_or_left(text: str) -> None:
    assert close_document(text) is None or close_document(text)


def test_a_whole_document_is_not_close_document() -> None:
    assert close_document(json.dumps(STATE)) is None
