from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history, metric, steps

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.json_rows import json_line


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_trainers_state_gives_its_curves_without_its_summary(tmp_path: Path) -> None:
    history_of_log: list[dict[str, object]] = [
        {
            "epoch": n / 10,
            "loss": 3 / n,
            "learning_rate": 1e-4,
            "grad_norm": math.nan if n == 3 else 1.0,
            "step": n * 10,
        }
        for n in range(1, 9)
    ]
    history_of_log.insert(4, {"epoch": 0.4, "eval_loss": 1.1, "eval_runtime": 3.0, "step": 40})
    history_of_log.append({"epoch": 0.8, "eval_loss": 0.9, "eval_runtime": 3.0, "step": 80})
    history_of_log.append({"epoch": 0.8, "train_loss": 1.7, "total_flos": 1e18, "train_runtime": 9.0, "step": 80})
    run = history(tmp_path, json.dumps({"best_metric": None, "log_history": history_of_log, "max_steps": 80}, indent=2))
    assert run.format == "trainer_state"
    assert steps(run, "loss") == [10, 20, 30, 40, 50, 60, 70, 80]
    assert curve(run, "eval_loss") == [(40, 1.1), (80, 0.9)]
    assert "train_loss" not in {entry.name for entry in run.metrics}
    assert math.isnan(curve(run, "grad_norm")[2][1])
    assert run.params["max_steps"] == "80"


def test_lines_of_objects_are_rows_and_null_was_not_logged(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"iteration": n, "total_loss": 5 / n, "lr": None if n == 2 else 0.1, "name": "x"} for n in range(1, 5)
    ]
    run = history(tmp_path, lines(rows))
    assert run.format == "json_lines"
    assert steps(run, "total_loss") == [1, 2, 3, 4]
    assert steps(run, "lr") == [1, 3, 4]


def test_a_constant_number_of_steps_is_not_the_step(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"current_steps": n * 10, "total_steps": 8660, "loss": 5 / n, "percentage": n} for n in range(1, 5)
    ]
    rows.append({"current_steps": 40, "total_steps": 8660, "percentage": 100.0})
    run = history(tmp_path, lines(rows))
    assert steps(run, "loss") == [10, 20, 30, 40]
    assert metric(run, "percentage").meaning.bookkeeping


def test_runs_appended_to_one_file_are_attempts(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"iteration": n, "total_loss": 9 / n} for end in (60, 40, 80) for n in range(19, end, 20)
    ]
    series = metric(history(tmp_path, lines(rows)), "total_loss").series
    assert series.attempts.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2][: len(series)]


def test_a_resume_with_overlap_is_an_attempt_too(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": n, "loss": 1.0 / n} for n in [*range(10, 500, 10), *range(300, 700, 10)]]
    series = metric(history(tmp_path, lines(rows)), "loss").series
    assert series.steps[series.attempts == 1].tolist() == list(range(300, 700, 10))


def test_objects_in_objects_become_names_with_slashes(tmp_path: Path) -> None:
    run = history(tmp_path, lines([{"step": n, "train": {"loss": 1 / n, "deep": {"lr": 0.1}}} for n in (1, 2)]))
    assert {entry.name for entry in run.metrics} == {"train/loss", "train/deep/lr"}


def test_a_split_named_in_a_field_says_what_was_measured(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"step": n, "split": split, "loss": 1 / n} for n in (1, 2, 3) for split in ("train", "valid")
    ]
    run = history(tmp_path, lines(rows))
    assert {item.meaning.quantity for item in run.metrics} == {"loss", "val_loss"}


def test_a_list_of_rows_and_names_with_lists_are_runs_too(tmp_path: Path) -> None:
    rows = [{"epoch": n, "loss": 1 / (n + 1)} for n in range(4)]
    assert steps(history(tmp_path, json.dumps(rows)), "loss") == [0, 1, 2, 3]
    assert steps(history(tmp_path, json.dumps({"args": {"lr": 1}, "history": rows}, indent=1)), "loss") == [0, 1, 2, 3]
    lists = {"loss": [3.0, 2.0, None, 1.0], "val_loss": [3.5, math.inf, 2.0, 2.0], "model": "x"}
    run = history(tmp_path, json.dumps(lists))
    assert (run.format, run.ordinal_steps) == ("json", True)
    assert curve(run, "loss") == [(0, 3.0), (1, 2.0), (3, 1.0)]
    assert math.isinf(curve(run, "val_loss")[1][1])
    pairs = {"loss": [[10, 3.0], [20, 2.0], [30, 1.0]]}
    assert steps(history(tmp_path, json.dumps(pairs)), "loss") == [10, 20, 30]


def test_lists_with_a_number_for_each_row_are_columns_of_the_rows(tmp_path: Path) -> None:
    rows = [{"step": 10 * n, "lr": 0.1} for n in range(4)]
    document = {"config": {"sizes": [1, 2]}, "loss": [3.0, 2.0, None, 1.0], "stats": rows}
    run = history(tmp_path, json.dumps(document, indent=1))
    assert {metric.name for metric in run.metrics} == {"loss", "lr"}
    assert curve(run, "loss") == [(0, 3.0), (10, 2.0), (30, 1.0)]


def test_a_single_line_with_everything_is_a_document(tmp_path: Path) -> None:
    assert (
        len(curve(history(tmp_path, json.dumps({"history": {"loss": [3, 2, 1], "epoch": [1, 2, 3]}})), "history/loss"))
        == 3
    )


@pytest.mark.parametrize("text", ['{"loss": "25.22"}', "{'loss': 25.22}", "{'loss': tensor(25.22, device='cuda:0')}"])
def test_numbers_as_text_and_as_tensors_are_numbers(text: str) -> None:
    read = json_line(text)
    assert read is not None
    assert read.values == {"loss": 25.22}


@given(st.text(max_size=60))
def test_no_line_makes_it_fail(text: str) -> None:
    for line in ("{" + text + "}", text + '{"loss": 1}', '{"a": ' + text + "}"):
        read = json_line(line)
        assert read is None or all(isinstance(value, float) for value in read.values.values())


def test_a_number_too_large_for_a_float_is_infinite() -> None:
    read = json_line('{"loss": ' + "9" * 400 + "}")
    assert read is not None
    assert read.values == {"loss": math.inf}


def test_rows_that_are_no_objects_are_skipped_and_huge_numbers_are_infinite(tmp_path: Path) -> None:
    rows: list[object] = [{"step": n, "loss": 1.0} for n in range(4)]
    rows[2:2] = [None, [1], {"step": 9, "loss": 10**400}]
    for document in (rows, {"log_history": rows}):
        assert math.inf in dict(curve(history(tmp_path, json.dumps(document)), "loss")).values()
    assert curve(history(tmp_path, json.dumps({"loss": [10**400, 1]})), "loss") == [(0, math.inf), (1, 1.0)]


def test_a_list_of_numbers_is_the_loss_that_its_file_is_named_after(tmp_path: Path) -> None:
    assert curve(history(tmp_path, "[3.0, 2.0, 1.5]", "train_losses.json"), "train_losses") == [
        (0, 3.0),
        (1, 2.0),
        (2, 1.5),
    ]
    with pytest.raises(UnreadableLogError, match="not a readable training log"):
        history(tmp_path, "[3.0, 2.0, 1.5]", "split.json")
    log = "[1, 2000] loss: 2.1\n[1, 4000] loss: 1.8\n[2, 2000] loss: 1.6\n"
    assert [value for _, value in curve(history(tmp_path, log, "loss.txt"), "loss")] == [2.1, 1.8, 1.6]


def test_splits_in_a_file_of_losses_are_losses_and_in_another_file_they_are_not(tmp_path: Path) -> None:
    both = json.dumps({"train": [3, 2, 1], "val": [3, 3, 2], "seed": [1, 2]})
    kinds = {item.name: item.meaning.quantity for item in history(tmp_path, both, "losses.json").metrics}
    assert (kinds["train_loss"], kinds["val_loss"]) == ("loss", "val_loss")
    assert {entry.name for entry in history(tmp_path, both, "accuracy.json").metrics} == {"train", "val", "seed"}
