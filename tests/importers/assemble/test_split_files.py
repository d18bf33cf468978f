from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_stability.importers.open_log import read


def write(path: Path, metrics: tuple[str, ...] = ("loss",), first: float = 4.0, every: int = 1) -> None:
    rows = [{"step": step, **dict.fromkeys(metrics, first / (1 + step))} for step in range(0, 60, every)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    ("train", "held_out"),
    [
        ("metrics_train.jsonl", "metrics_val.jsonl"),
        ("train.jsonl", "validation.jsonl"),
        ("run7-train-log.jsonl", "run7-eval-log.jsonl"),
    ],
)
def test_files_for_the_parts_of_the_data_are_one_run(tmp_path: Path, train: str, held_out: str) -> None:
    write(tmp_path / train)
    write(tmp_path / held_out, every=10)
    (run,) = read(tmp_path)
    assert run.source == str(tmp_path / train)
    assert run.name == f"{train} + {held_out}"
    quantities = {metric.meaning.quantity: len(metric.series) for metric in run.metrics}
    assert quantities == {"loss": 60, "val_loss": 6}


def test_each_training_is_joined_with_its_own_validation(tmp_path: Path) -> None:
    for fold in (1, 2):
        write(tmp_path / f"fold{fold}_train.jsonl", first=4.0 * fold)
        write(tmp_path / f"fold{fold}_val.jsonl", first=5.0 * fold)
    runs = read(tmp_path)
    assert [run.name for run in runs] == [
        "fold1_train.jsonl + fold1_val.jsonl",
        "fold2_train.jsonl + fold2_val.jsonl",
    ]
    assert [run.of("val_loss")[0].series.values[0] for run in runs] == [5.0, 10.0]


@pytest.mark.parametrize(
    "others", [("train_1.jsonl", "train_2.jsonl"), ("val.jsonl", "test.jsonl"), ("a.jsonl", "b.jsonl")]
)
def test_other_files_are_runs_of_their_own(tmp_path: Path, others: tuple[str, str]) -> None:
    for name in others:
        write(tmp_path / name)
    assert len(read(tmp_path)) == 2


def test_files_that_both_have_a_metric_are_not_joined(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ("loss", "val/loss"))
    write(tmp_path / "val.jsonl", ("val/loss",))
    assert len(read(tmp_path)) == 2
