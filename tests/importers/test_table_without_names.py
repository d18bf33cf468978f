"""A table whose first row names nothing: names are taken from a comment, else its first column has to count."""

from __future__ import annotations

from pathlib import Path

import pytest
from importers.reading import curve, history, steps

from mlflow_stability.curves.main_curves import with_main_curves
from mlflow_stability.errors import UnreadableLogError

FALLING = [2.5, 2.3, 2.1, 2.0, 1.9, 1.85, 1.8]


def table(*columns: list[float], mark: str = ",") -> str:
    return "".join(mark.join(f"{value:g}" for value in row) + "\n" for row in zip(*columns, strict=True))


@pytest.mark.parametrize("mark", [",", ";", "\t", "|", " ", ":"])
def test_the_only_column_besides_the_steps_is_the_loss(tmp_path: Path, mark: str) -> None:
    run = history(tmp_path, table([10 * n for n in range(7)], FALLING, mark=mark), "log.csv")
    assert curve(run, "loss") == [(10 * n, value) for n, value in enumerate(FALLING)]
    assert any("no header" in note for note in run.notes)


def test_a_score_that_rises_is_not_taken_for_a_loss(tmp_path: Path) -> None:
    run = history(tmp_path, table([*range(7)], [0.1, 0.3, 0.5, 0.6, 0.7, 0.75, 0.8]), "log.csv")
    assert [metric.name for metric in run.metrics] == ["column 2"]


def test_several_columns_are_numbered_and_the_note_says_how_to_choose(tmp_path: Path) -> None:
    run = history(tmp_path, table([*range(1, 8)], FALLING, [0.1] * 7), "log.csv")
    assert [metric.name for metric in run.metrics] == ["column 2", "column 3"]
    assert any("--loss 'column 2'" in note for note in run.notes)


def test_the_error_for_a_table_without_a_step_column_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLogError, match=r"Add a first line that names them, such as `step,loss,metric_1`"):
        history(
            tmp_path, table([5.1, 4.9, 4.7, 4.6, 5.0], [3.5, 3.0, 3.2, 3.1, 3.6], [1.4, 1.4, 1.3, 1.5, 1.4]), "a.csv"
        )


def test_columns_of_a_file_named_after_a_loss_are_losses_and_their_sum_is_the_main_one(tmp_path: Path) -> None:
    parts = [[value / 3 for value in FALLING], [value * 2 / 3 for value in FALLING]]
    run = with_main_curves(history(tmp_path, table(FALLING, *parts), "train_loss.csv"))
    assert {metric.name for metric in run.of("loss")} == {"train_loss_1", "train_loss_2", "train_loss_3"}
    assert next(metric.name for metric in run.of("loss") if not metric.meaning.place) == "train_loss_1"
    assert any("columns are taken for the losses" in note for note in run.notes)


def test_lists_of_numbers_of_one_line_each_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLogError, match="no metric has two or more values"):
        history(tmp_path, "0.5\n0.4\n0.3\n0.2\n0.1\n", "a.csv")


@pytest.mark.parametrize(
    ("file", "name"), [("loss.txt", "loss"), ("train_losses.csv", "train_losses"), ("loss_3.txt", "loss_3")]
)
def test_one_number_a_line_is_the_loss_that_the_name_of_the_file_says(tmp_path: Path, file: str, name: str) -> None:
    run = history(tmp_path, "".join(f"{value}\n" for value in FALLING), file)
    assert curve(run, name) == list(enumerate(FALLING))
    assert [entry.name for entry in run.of("loss")] == [name]


def test_the_header_of_pandas_for_columns_without_names_is_no_row(tmp_path: Path) -> None:
    run = history(tmp_path, ",0\n" + table([*range(7)], FALLING), "loss.csv")
    assert curve(run, "loss") == list(enumerate(FALLING))


@pytest.mark.parametrize("above", ["#", "# ", "# lr=0.1, seed=3\n# ", "# made by me\n\n#"])
@pytest.mark.parametrize("mark", [",", ";", "\t", " "])
def test_a_comment_above_the_first_row_names_the_columns(tmp_path: Path, mark: str, above: str) -> None:
    rows = table([0.1 * n for n in range(7)], [10 * n for n in range(7)], FALLING, mark=mark)
    run = history(tmp_path, above + mark.join(["time", "step", "val_loss"]) + "\n" + rows)
    assert curve(run, "val_loss") == [(10 * n, value) for n, value in enumerate(FALLING)]
    assert [entry.name for entry in run.of("val_loss")] == ["val_loss"]
    assert not any("no header" in note for note in run.notes)


@pytest.mark.parametrize("expected", ["seed 3, first try, of two", "second try, v2"])
def test_a_comment_that_names_something_else_names_no_columns(tmp_path: Path, expected: str) -> None:
    run = history(tmp_path, f"# {expected}\n" + table([*range(7)], FALLING))
    assert steps(run, "loss") == list(range(7))
    assert any("no header" in note for note in run.notes)


def test_a_header_beneath_a_comment_counts_before_it(tmp_path: Path) -> None:
    run = history(tmp_path, "# step,val_loss\niter,loss\n" + table([*range(7)], FALLING))
    assert steps(run, "loss") == list(range(7))


@pytest.mark.parametrize(("name", "is_read"), [("loss", True), ("val_loss", True), ("seed 3", False)])
def test_one_column_is_read_by_a_known_name(tmp_path: Path, name: str, is_read: bool) -> None:
    content = f"{name}\n" + "".join(f"{value}\n" for value in FALLING)
    if is_read:
        assert curve(history(tmp_path, content, "training.csv"), name) == list(enumerate(FALLING))
    else:
        with pytest.raises(UnreadableLogError):
            history(tmp_path, content, "training.csv")
