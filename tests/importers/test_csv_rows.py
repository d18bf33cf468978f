"""A quoted cell may hold line ends; a quote that is never closed swallows nothing."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history, metric, steps

from mlflow_stability.importers.csv_rows import MAX_QUOTED_CHARACTERS, MAX_QUOTED_LINES, rows_of

SAMPLES = ["a line\n900,77\nend", 'he said "no"\n\n# and left', "5,0.1,7\n", "plain"]


def table(separator: str = ",", samples: list[str] = SAMPLES) -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator="\n")
    writer.writerow(["step", "sample", "loss"])
    writer.writerows([n, samples[n % len(samples)], 2.5 - n / 50] for n in range(60))
    return out.getvalue()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_quoted_cell_may_hold_line_ends(tmp_path: Path, separator: str) -> None:
    run = history(tmp_path, table(separator), "log.csv")
    assert curve(run, "loss") == [(n, 2.5 - n / 50) for n in range(60)]
    assert [entry.name for entry in run.metrics] == ["loss"]
    lines = metric(run, "loss").lines
    assert lines is not None
    assert [table(separator).splitlines()[at - 1].split(separator)[0] for at in lines.tolist()] == list(
        map(str, range(60))
    )


def test_a_cell_may_have_more_lines_than_the_first_part_that_is_read(tmp_path: Path) -> None:
    assert len(curve(history(tmp_path, table(samples=["one\n" * 50])), "loss")) == 60


@pytest.mark.parametrize("remark", ['5" screen', '"broken', 'a "b" "c', '"broken" off"'])
def test_a_quote_that_is_never_closed_swallows_no_row(tmp_path: Path, remark: str) -> None:
    rows = [f'{n},{1 / n},"fine"' for n in range(1, 40)]
    rows[4] = f"5,0.2,{remark}"
    rows[20] = f"21,{1 / 21},{remark}"
    assert steps(history(tmp_path, "step,loss,remark\n" + "\n".join(rows)), "loss") == list(range(1, 40))


@pytest.mark.parametrize("rest", [["fine"] * (MAX_QUOTED_LINES + 5), ["x" * (MAX_QUOTED_CHARACTERS // 3)] * 9])
def test_a_quote_is_given_up_after_many_lines(rest: list[str]) -> None:
    rows = list(rows_of(['1,"open', *rest, 'closed",2'], ","))
    assert [row for _, row in rows] == ["1,open", *rest, "closed,2"]
    assert [at for at, _ in rows] == list(range(1, len(rest) + 3))


@given(st.lists(st.lists(st.text('ab",; \n#1', max_size=8), min_size=3, max_size=3), min_size=1, max_size=8))
def test_whatever_a_writer_of_tables_quotes_is_put_together(rows: list[list[str]]) -> None:
    rows = [[str(n), *row] for n, row in enumerate(rows)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    items = [next(csv.reader(io.StringIO(row))) for _, row in rows_of(out.getvalue().split("\n"), ",")]
    assert items == rows


@given(st.text('a",\n', max_size=60))
def test_no_text_is_lost_or_makes_it_fail(text: str) -> None:
    result = "".join(row for _, row in rows_of(text.split("\n"), ","))
    assert result.count("a") == text.count("a")
