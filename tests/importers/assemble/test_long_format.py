from __future__ import annotations

import json
from pathlib import Path

import pytest
from importers.reading import curve, history

LOGGED = [
    (name, step, value)
    for step, pair in enumerate([(3.0, 0.1), (2.0, 0.2), (1.0, 0.3)])
    for name, value in zip(("loss", "lr"), pair, strict=True)
]


@pytest.mark.parametrize("key", ["name", "metric", "key", "tag"])
def test_rows_of_one_value_each_are_the_curves_that_they_name(tmp_path: Path, key: str) -> None:
    rows = [{key: name, "step": step, "value": value, "timestamp": 1.7e12 + step} for name, step, value in LOGGED]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    table = f"run,{key},step,wall_time,value\n" + "".join(
        f"x,{name},{step},170000000{step},{value}\n" for name, step, value in LOGGED
    )
    for text in (lines, json.dumps(rows), table):
        run = history(tmp_path, text)
        assert {metric.name for metric in run.metrics} == {"loss", "lr"}
        assert curve(run, "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]
        assert run.metrics[0].series.times[0] == 1.7e9


def test_a_row_that_has_other_numbers_too_is_an_ordinary_row(tmp_path: Path) -> None:
    rows = [{"name": "exp", "step": n, "value": 1.0, "loss": 2.0} for n in range(3)]
    run = history(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert {metric.name for metric in run.metrics} == {"value", "loss"}
