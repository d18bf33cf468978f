"""What the first lines of a table may look like."""

from __future__ import annotations

from pathlib import Path

import pytest
from importers.reading import curve, history, metric, steps

LOSSES = [2.5 - n / 50 for n in range(100)]


@pytest.mark.parametrize(
    "name", ["metrics/mAP_0.5:0.95", "Unnamed: 0", "mAP@0.5:0.95", "acc/dataloader_idx=0", "top=5"]
)
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_column_name_may_look_like_a_value_if_numbers_follow_below_it(tmp_path: Path, name: str, mark: str) -> None:
    rows = "".join(f"{n}{mark}{value}{mark}0.5\n" for n, value in enumerate(LOSSES))
    run = history(tmp_path, f"epoch{mark}train/box_loss{mark}{name}\n{rows}", "results.csv")
    assert curve(run, "train/box_loss") == list(enumerate(LOSSES))
    assert len(metric(run, name).series) == 100


def test_a_name_that_looks_like_a_value_may_head_a_column_that_starts_blank(tmp_path: Path) -> None:
    rows = "".join(f"{n},{value},{0.5 if n % 40 == 39 else ''}\n" for n, value in enumerate(LOSSES))
    assert steps(history(tmp_path, f"step,loss,acc/dataloader_idx=0\n{rows}"), "acc/dataloader_idx=0") == [39, 79]


@pytest.mark.parametrize(
    "line", ["step={}, loss={}, lr=0.1", "Epoch: {}, Loss: {}, fine", "[12:30:01] step {}, loss: {}, lr: 0.1"]
)
def test_lines_of_names_with_values_are_no_table(tmp_path: Path, line: str) -> None:
    run = history(tmp_path, "".join(line.format(n, value) + "\n" for n, value in enumerate(LOSSES)))
    assert run.format == "text"
    (loss,) = run.of("loss")
    assert loss.series.values.tolist() == LOSSES


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_rows_may_end_with_a_separator_that_the_header_lacks(tmp_path: Path, mark: str) -> None:
    rows = "".join(f"{n}{mark}{value}{mark}0.1{mark}\n" for n, value in enumerate(LOSSES))
    run = history(tmp_path, f"step{mark}loss{mark}lr\n{rows}")
    assert curve(run, "loss") == list(enumerate(LOSSES))
    assert [entry.name for entry in run.metrics] == ["loss", "lr"]


def with_commas(mark: str, quoted: str = "") -> str:
    cells = [(str(n), f"{value:.3f}".replace(".", ","), "-" if n % 7 else "0,25") for n, value in enumerate(LOSSES)]
    return "".join(mark.join(f"{quoted}{cell}{quoted}" for cell in row) + "\n" for row in cells)


@pytest.mark.parametrize(("mark", "quoted"), [("\t", ""), ("|", ""), (";", ""), (",", '"')])
def test_decimal_commas_are_read_whatever_separates_cells(tmp_path: Path, mark: str, quoted: str) -> None:
    run = history(tmp_path, f"step{mark}loss{mark}acc\n{with_commas(mark, quoted)}")
    assert curve(run, "loss") == [(n, pytest.approx(value)) for n, value in enumerate(LOSSES)]
    assert set(curve(run, "acc")) == {(n, 0.25) for n in range(0, 100, 7)}


def test_a_date_with_points_leaves_decimal_commas_what_they_are(tmp_path: Path) -> None:
    rows = "".join(f"01.02.2024 10:01;{line}" for line in with_commas(";").splitlines(keepends=True))
    assert curve(history(tmp_path, f"datum;step;loss;acc\n{rows}"), "loss")[50] == (50, 1.5)


def test_commas_between_thousands_beside_decimal_points_are_no_decimals(tmp_path: Path) -> None:
    rows = "".join(f'{n},{value},"{1 + n},234"\n' for n, value in enumerate(LOSSES))
    run = history(tmp_path, f"step,loss,tokens\n{rows}")
    assert [entry.name for entry in run.metrics] == ["loss"]
    assert curve(run, "loss") == list(enumerate(LOSSES))
