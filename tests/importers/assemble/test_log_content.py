from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from importers.reading import curve, history, metric

from mlflow_stability.importers import log_content
from mlflow_stability.importers.log_content import Column, LogContent

MEGABYTE = 1024 * 1024
READ = """
import resource, sys
from pathlib import Path
from mlflow_stability.importers import log_content
from mlflow_stability.importers.open_log import read
log_content.MAX_VALUES, log_content._MIN_THINNED_LENGTH = int(sys.argv[2]), 1000
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(run,) = read(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, run.complete, run.metrics[0].series.values.max())
"""


def test_a_log_that_does_not_fit_keeps_every_extreme_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_content, "MAX_VALUES", 4000)
    monkeypatch.setattr(log_content, "_MIN_THINNED_LENGTH", 100)
    values = [1.0 + n % 7 / 10 for n in range(9000)]
    values[3003], values[5005], values[7007] = 50.0, float("nan"), -50.0
    run = history(tmp_path, "".join(f"step {n} loss {value}\n" for n, value in enumerate(values)))
    kept = dict(curve(run, "loss"))
    assert (kept[3003], kept[7007]) == (50.0, -50.0)
    assert np.isnan(kept[5005])
    assert len(kept) <= 4000
    assert not run.complete
    assert "too long for memory" in " ".join(run.notes)
    assert (metric(run, "loss").series.steps[0], metric(run, "loss").series.steps[-1]) == (0, 8999)


@given(st.lists(st.floats(), min_size=1, max_size=60))
def test_thinning_keeps_the_order_and_the_extremes(values: list[float]) -> None:
    column = Column()
    for row, value in enumerate(values):
        column.append(row, row, row, value, row)
    column.thin()
    kept = np.asarray(column.values)
    assert len(column) <= max(len(values) // 2 + 3, 3)
    assert (np.diff(np.asarray(column.rows)) > 0).all()
    assert np.isnan(kept).any() == np.isnan(values).any()
    finite = np.asarray(values)[~np.isnan(values)]
    if len(finite) == len(values):
        assert (kept.max(), kept.min()) == (finite.max(), finite.min())


def test_names_without_end_are_not_kept_without_end() -> None:
    result = LogContent()
    for row in range(log_content.MAX_METRICS + 50):
        result.add_row(row, {f"metric {row}": 1.0})
    assert len(result.columns) == log_content.MAX_METRICS
    assert result.names_left_out == 50


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    file = tmp_path / "long.log"
    with file.open("w") as log:
        for step in range(100_000):
            log.write(
                f"step:{step} loss:{step % 13 + 0.5} " + " ".join(f"m{n}:{step % 7}.5" for n in "abcdefghi") + "\n"
            )
    values = subprocess.run(
        [sys.executable, "-c", READ, str(file), "100000"], capture_output=True, text=True, check=True
    ).stdout.split()
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(values[0]) * unit < 25 * MEGABYTE
    assert values[1:] == ["False", "12.5"]


def test_many_values_at_once_are_thinned_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_content, "MAX_VALUES", 4000)
    monkeypatch.setattr(log_content, "_MIN_THINNED_LENGTH", 100)
    whole = log_content.LogContent()
    whole.add_column("loss", np.arange(20_000), np.ones(20_000))
    assert len(whole.columns["loss"]) <= 4000


def test_a_step_of_infinitely_many_is_read(tmp_path: Path) -> None:
    run = history(tmp_path, "".join(f"step {n}/{'9' * 400} loss {9 / n}\n" for n in range(1, 9)))
    assert len(curve(run, "loss")) == 8
