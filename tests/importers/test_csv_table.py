from __future__ import annotations

import gzip
import math
from itertools import islice, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history, metric, steps

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers import csv_table


def test_a_blank_cell_was_not_logged_and_nan_was(tmp_path: Path) -> None:
    table = "epoch,step,train_loss,val_loss\n0,9,3.0,\n0,9,,2.5\n1,19,nan,\n1,19,,None\n2,29,inf,null\n"
    run = history(tmp_path, table)
    assert run.format == "lightning_csv"
    assert [step for step, _ in curve(run, "train_loss")] == [9, 19, 29]
    assert math.isnan(curve(run, "train_loss")[1][1])
    assert math.isinf(curve(run, "train_loss")[2][1])
    assert curve(run, "val_loss") == [(9, 2.5)]


def test_a_header_padded_with_spaces_names_its_columns(tmp_path: Path) -> None:
    header = ",".join(
        f"{name:>22}" for name in ("epoch", "train/box_loss", "val/box_loss", "metrics/mAP50(B)", "lr/pg0")
    )
    run = history(
        tmp_path, header + "\n" + "".join(f"{n:>22},{2 / (n + 1):>22},{3:>22},{0.5:>22},{0.1:>22}\n" for n in range(4))
    )
    assert run.format == "ultralytics_csv"
    assert curve(run, "train/box_loss")[1] == (1, 1.0)
    assert metric(run, "train/box_loss").meaning.place == metric(run, "val/box_loss").meaning.place


def test_rows_of_batches_within_epochs_are_put_in_a_row(tmp_path: Path) -> None:
    run = history(
        tmp_path, "Epoch,Batch,Gen Loss,Disc Loss\n" + "".join(f"{e},{b},0.7,1.3\n" for e in range(4) for b in range(5))
    )
    assert steps(run, "Gen Loss") == list(range(20))
    assert {item.meaning.place for item in run.of("loss")} == {"Gen", "Disc"}


def test_counted_steps_are_taken_before_counted_rounds(tmp_path: Path) -> None:
    table = "time/iterations,train/loss,time/total_timesteps\n" + "".join(
        f"{n},{5 / n},{n * 2048}\n" for n in range(1, 6)
    )
    assert steps(history(tmp_path, table), "train/loss") == [n * 2048 for n in range(1, 6)]


def test_epochs_alone_are_the_steps(tmp_path: Path) -> None:
    run = history(tmp_path, "epoch,loss,val_loss\n" + "".join(f"{n},{2 / (n + 1)},{3 / (n + 1)}\n" for n in range(5)))
    assert (run.format, run.ordinal_steps, steps(run, "loss")) == ("csv", False, [0, 1, 2, 3, 4])


def test_a_table_without_steps_is_numbered(tmp_path: Path) -> None:
    run = history(tmp_path, "loss,acc\n" + "1.5,0.1\n" * 3 + "1.0,0.2\n" * 3)
    assert run.ordinal_steps
    assert steps(run, "acc") == list(range(6))


def test_a_run_that_was_appended_with_its_header_is_a_second_attempt(tmp_path: Path) -> None:
    text = "step,loss\n" + "".join(f"{n},{5 / n}\n" for n in range(1, 9))
    run = history(tmp_path, text + text)
    assert metric(run, "loss").series.attempts.tolist() == [0] * 8 + [1] * 8


def test_a_header_that_changes_on_the_way_names_what_follows(tmp_path: Path) -> None:
    run = history(tmp_path, "step,loss\n1,3\n2,2\nstep,loss,lr\n3,1.5,0.1\n4,1.2,0.2\n")
    assert curve(run, "loss") == [(1, 3), (2, 2), (3, 1.5), (4, 1.2)]
    assert curve(run, "lr") == [(3, 0.1), (4, 0.2)]


@pytest.mark.parametrize(("separator", "decimal"), [(";", ","), (";", "."), ("\t", "."), (",", ".")])
def test_separators_and_decimal_commas_are_distinguished(tmp_path: Path, separator: str, decimal: str) -> None:
    rows = "".join(f"{n}{separator}{n}{decimal}5\n" for n in range(1, 6))
    assert curve(history(tmp_path, f"step{separator}loss\n{rows}"), "loss")[2] == (3, 3.5)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_the_encoding_is_detected(tmp_path: Path, encoding: str) -> None:
    table = "step,loss,größe\r\n" + "".join(f"{n},{5 / n},1\r\n" for n in range(1, 9))
    run = history(tmp_path, table.encode(encoding))
    assert [entry.name for entry in run.metrics] == ["loss", "größe"]


def test_a_packed_table_is_unpacked(tmp_path: Path) -> None:
    assert len(curve(history(tmp_path, gzip.compress(b"step,loss\n1,3\n2,2\n3,1\n")), "loss")) == 3


def test_texts_and_half_a_last_line_do_no_harm(tmp_path: Path) -> None:
    run = history(tmp_path, "step,loss,phase\n1,3,warmup\n2,2,main\n3,1,main\n4,")
    assert [entry.name for entry in run.metrics] == ["loss"]
    assert curve(run, "loss") == [(1, 3), (2, 2), (3, 1)]


@pytest.mark.slow
@given(st.lists(st.one_of(st.none(), st.floats()), min_size=2, max_size=40), st.integers(1, 7))
def test_every_value_arrives_however_the_table_is_parted(
    tmp_path_factory: pytest.TempPathFactory, values: list[float | None], part: int
) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = "step,loss,other\n" + "".join(f"{n},{'' if value is None else value},1\n" for n, value in enumerate(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_table, "PART", part)
        run = history(folder, table)
    expected = [(n, value) for n, value in enumerate(values) if value is not None]
    result = curve(run, "loss") if expected else []
    assert [step for step, _ in result] == [step for step, _ in expected]
    assert [value for _, value in result] == pytest.approx([value for _, value in expected], nan_ok=True, rel=1e-12)


def test_columns_with_duplicate_or_missing_names_get_distinct_names(tmp_path: Path) -> None:
    run = history(tmp_path, ",,step,loss,loss\n" + "".join(f"7,{n},{n * 10},{1 / n},{2 / n}\n" for n in range(1, 5)))
    assert curve(run, "loss")[1] == (20, 0.5)
    assert curve(run, "loss (2)")[1] == (20, 1.0)
    assert {"unnamed 1", "unnamed 2"} <= {entry.name for entry in run.metrics}


def test_a_quoted_name_may_hold_the_separator(tmp_path: Path) -> None:
    run = history(tmp_path, 'step,"loss, train",acc\n' + "".join(f'{n},{1 / n},"0.{n}"\n' for n in range(1, 5)))
    assert curve(run, "loss, train")[1] == (2, 0.5)
    assert curve(run, "acc")[1] == (2, 0.2)


def test_bars_may_separate_cells(tmp_path: Path) -> None:
    run = history(tmp_path, "step | loss\n" + "".join(f"{n} | {1 / n}\n" for n in range(1, 5)))
    assert curve(run, "loss")[1] == (2, 0.5)


def test_a_quote_that_is_never_closed_swallows_nothing(tmp_path: Path) -> None:
    rows = [f"{n},{1 / n},fine" for n in range(1, 30)]
    rows[4] = '5,0.2,5" screen'
    run = history(tmp_path, "step,loss,remark\n" + "\n".join(rows))
    assert steps(run, "loss") == list(range(1, 30))


@pytest.mark.parametrize(("count", "is_judged"), [("", False), ("step,", True)])
def test_a_table_that_compares_settings_is_no_curve(tmp_path: Path, count: str, is_judged: bool) -> None:
    rows = "".join(
        f"{10 * length + n},"[: 99 * bool(count)] + f"{model},{length},{length / 9:.2f}\n"
        for length in range(1, 8)
        for n, model in enumerate(("linear", "softmax", "flash"))
    )
    run = history(tmp_path, f"{count}model,length,final_loss\n{rows}")
    assert (metric(run, "final_loss").meaning.quantity == "loss") is is_judged
    assert any("are of each 'model' in turn" in note for note in run.notes) is not is_judged


@pytest.mark.slow
def test_a_table_of_more_columns_than_a_log_has_is_refused_in_one_sentence(tmp_path: Path) -> None:
    columns = ["".join(letters) for letters in islice(product("ghijklmnopqrstuvwxyz", repeat=3), csv_table.MAX_COLUMNS)]
    header, row = ",".join(columns), ",".join("1" for _ in columns)
    assert len(history(tmp_path, f"{header}\n{row}\n{row}\n").metrics) == len(columns)
    with pytest.raises(UnreadableLogError, match=r"is a table of 4,001 columns; up to 4,000 are read\.$"):
        history(tmp_path, f"{header},more\n{row},1\n{row},1\n")
