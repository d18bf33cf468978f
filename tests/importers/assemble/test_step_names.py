"""Times since 1970 are in seconds, whatever the log counts them in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from importers.reading import history, metric

START = 1_700_000_000


@pytest.mark.parametrize("unit", [1, 1000, 1_000_000, 1_000_000_000])
@pytest.mark.parametrize("form", ["table", "lines"])
def test_a_timestamp_is_in_seconds_whatever_it_counts(tmp_path: Path, unit: int, form: str) -> None:
    rows = [{"timestamp": (START + n) * unit, "step": n, "loss": 3 / (n + 1)} for n in range(20)]
    lines = [json.dumps(row) for row in rows]
    table = ["timestamp,step,loss", *(",".join(map(str, row.values())) for row in rows)]
    series = metric(history(tmp_path, "\n".join(table if form == "table" else lines) + "\n"), "loss").series
    assert series.times.tolist() == pytest.approx([START + n for n in range(20)])


def test_a_row_without_a_time_has_none(tmp_path: Path) -> None:
    table = "timestamp,step,loss\n" + "".join(
        f"{'' if n == 3 else (START + n) * 1000},{n},{3 / (n + 1)}\n" for n in range(8)
    )
    times = metric(history(tmp_path, table), "loss").series.times.tolist()
    assert times[2:5] == [START + 2, 0.0, START + 4]


@pytest.mark.parametrize("seconds", ["time_s", "time (s)", "time/s", "time in s", "train_time_sec", "s"])
def test_a_duration_in_seconds_is_not_the_step(tmp_path: Path, seconds: str) -> None:
    table = f"epoch,loss,{seconds}\n" + "".join(f"{n},{3 / n},{600 + 37 * n % 50}\n" for n in range(1, 13))
    run = history(tmp_path, table)
    is_step = seconds == "s"
    assert (metric(run, "loss").series.steps.tolist() == list(range(1, 13))) is not is_step


def test_rows_that_count_with_itr_have_their_steps(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"itr": 2000 * n, "FID": 90 / n}) + "\n" for n in range(1, 9))
    assert metric(history(tmp_path, lines), "FID").series.steps.tolist() == [2000 * n for n in range(1, 9)]
