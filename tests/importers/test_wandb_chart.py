"""Each run of a chart that W&B exported is judged by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from importers.reading import curve, history

from mlflow_stability.importers.open_log import read

LOSSES = [2.5 - n / 50 for n in range(60)]


def chart(*columns: str, axis: str = "Step") -> str:
    """A chart with these columns, of which the n-th falls from 2.5 + n; every second row has only every second one."""
    header = [axis, *(f"{name}{bound}" for name in columns for bound in ("", "__MIN", "__MAX"))]
    lines = [",".join(f'"{name}"' for name in header)]
    for n, loss in enumerate(LOSSES):
        cells = [str(loss + place) if (n + place) % 2 == 0 else "" for place in range(len(columns)) for _ in range(3)]
        lines.append(",".join(f'"{cell}"' for cell in [str(10 * n), *cells]))
    return "\n".join(lines) + "\n"


def test_each_run_of_a_chart_is_a_run(tmp_path: Path) -> None:
    file = tmp_path / "chart.csv"
    file.write_text(chart("seed1 - train/loss", "seed2 - train/loss"))
    first, two = read(file)
    assert curve(first, "train/loss") == [(10 * n, LOSSES[n]) for n in range(0, 60, 2)]
    assert curve(two, "train/loss") == [(10 * n, LOSSES[n] + 1) for n in range(1, 60, 2)]
    assert [metric.name for metric in (*first.metrics, *two.metrics)] == ["train/loss", "train/loss"]
    assert [(entry.name, entry.source) for entry in (first, two)] == [
        ("seed1", str(file / "seed1")),
        ("seed2", str(file / "seed2")),
    ]
    assert all("chart of 2 runs" in note for item in (first, two) for note in item.notes)
    assert [entry.name for entry in read(file / "seed2")] == ["seed2"]


def test_metrics_of_one_run_stay_together(tmp_path: Path) -> None:
    run = history(tmp_path, chart("eval - 3 - train/loss", "eval - 3 - val/loss"))
    assert {metric.name: metric.meaning.quantity for metric in run.metrics} == {
        "train/loss": "loss",
        "val/loss": "val_loss",
    }
    assert not run.notes


@pytest.mark.parametrize("axis", ["Step", "train/global_step", "Relative Time (Wall)"])
def test_whatever_the_axis_a_lone_run_is_read_under_its_metrics_name(tmp_path: Path, axis: str) -> None:
    (loss,) = history(tmp_path, chart("run-a - loss", axis=axis)).of("loss")
    assert loss.name == "loss"
    assert loss.series.values.tolist() == LOSSES[::2]


def test_runs_with_the_same_name_or_with_slashes_in_their_names_stay_separate(tmp_path: Path) -> None:
    file = tmp_path / "chart.csv"
    file.write_text(chart("a/b - loss", "a/b - loss", "a_b - loss"))
    runs = read(file)
    assert len({run.source for run in runs}) == 3
    assert [read(Path(run.source))[0].of("loss")[0].series.values[0] for run in runs] == [
        LOSSES[0],
        LOSSES[1] + 1,
        LOSSES[0] + 2,
    ]


def test_names_with_a_dash_but_without_bounds_are_no_runs(tmp_path: Path) -> None:
    rows = "".join(f"{n},{loss},{loss + 1}\n" for n, loss in enumerate(LOSSES))
    run = history(tmp_path, f"step,Loss - train,Loss - val\n{rows}")
    assert [metric.name for metric in run.metrics] == ["Loss - train", "Loss - val"]
