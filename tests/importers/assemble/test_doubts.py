"""Losses whose values are no curve of one quantity are left alone, and a note says why."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from importers.reading import curve, history, metric

from mlflow_stability.diagnosis.diagnose import diagnosis_of


def turns(levels: Sequence[float], rounds: int) -> str:
    values = [level * (1 - 0.01 * n) for n in range(rounds) for level in levels]
    return "".join(f"step {n} loss {value:.4f}\n" for n, value in enumerate(values, 1))


@pytest.mark.parametrize("levels", [(2.0, 40.0), (0.3, 5.0, 20.0)])
def test_values_that_alternate_between_levels_are_of_several_quantities(
    tmp_path: Path, levels: tuple[float, ...]
) -> None:
    run = history(tmp_path, turns(levels, 12))
    assert run.of("loss") == ()
    assert diagnosis_of(run).judged.losses == ()
    assert run.notes[0].startswith(f"Not judged: loss, because its values alternate between {len(levels)} levels")


def test_a_trainer_that_logs_one_loss_may_have_batches_that_alternate(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": (2.0, 0.8)[n % 2] * 0.98**n, "epoch": n / 20} for n in range(1, 41)]
    run = history(tmp_path, json.dumps({"log_history": rows}), "trainer_state.json")
    assert diagnosis_of(run).judged.losses == ("loss",)


@pytest.mark.parametrize(
    "values",
    [
        [2.0 - 0.01 * n for n in range(60)],
        [2.0 + 0.3 * math.sin(1.7 * n * n) for n in range(60)],
        [2.0 if n % 2 else 40.0 for n in range(10)],
        [2.0 if n % 2 else 40.0 for n in range(59)] + [math.nan],
    ],
    ids=["falls", "noise", "few values", "becomes NaN"],
)
def test_other_curves_stay_losses(tmp_path: Path, values: list[float]) -> None:
    run = history(tmp_path, "".join(f"step {n} loss {value:.4f}\n" for n, value in enumerate(values, 1)))
    assert metric(run, "loss").meaning.quantity == "loss"
    assert not run.notes


def test_lines_of_the_same_late_epoch_are_results_of_several_trainings(tmp_path: Path) -> None:
    run = history(tmp_path, "".join(f"Epoch 30 | Train Loss: {0.4 + 0.03 * (n % 5):.2f}\n" for n in range(20)))
    assert not metric(run, "Train Loss").meaning.is_known
    assert "Not judged: Train Loss, because all 20 values are of epoch 30" in run.notes[-1]


@pytest.mark.parametrize("log", ["Epoch 1 | Train Loss: {}\n", "Train Loss: {}\n"])
def test_lines_of_the_first_epoch_or_of_none_are_a_curve(tmp_path: Path, log: str) -> None:
    text = "epochs:30\n" + "".join(log.format(9 / n) for n in range(1, 21))
    assert metric(history(tmp_path, text), "Train Loss").meaning.quantity == "loss"


def test_a_part_that_is_never_finite_beside_a_finite_one_does_not_apply(tmp_path: Path) -> None:
    log = "".join(f"step {n} pose_loss {9 / n:.3f} waypoint_loss nan\n" for n in range(1, 9))
    run = history(tmp_path, log)
    assert not metric(run, "waypoint_loss").meaning.is_known
    assert metric(run, "pose_loss").meaning.quantity == "loss"


def test_a_loss_that_is_never_finite_is_one_where_all_are(tmp_path: Path) -> None:
    run = history(tmp_path, "".join(f"step {n} pose_loss nan waypoint_loss nan\n" for n in range(1, 9)))
    assert all(loss.meaning.quantity == "loss" for loss in run.metrics)


def test_batches_of_an_evaluation_at_one_step_are_averaged(tmp_path: Path) -> None:
    log = ""
    for n in range(1, 9):
        log += f"step {n} loss {9 / n:.3f}\n" + "".join(f"Validation loss: {n + k}\n" for k in (-0.5, 0.5))
    assert curve(history(tmp_path, log), "Validation loss") == [(n, n) for n in range(1, 9)]


def test_a_step_that_goes_back_with_a_number_that_is_no_epoch_is_another_training(tmp_path: Path) -> None:
    losses = "".join(f"step {n} loss {9 / (n + 1):.3f}\n" for n in range(10))
    run = history(tmp_path, f"epoch 256\n{losses}epoch 1152\n{losses}")
    assert metric(run, "loss").series.attempts.tolist() == [0] * 10 + [1] * 10
    assert max(metric(run, "loss").series.steps) == 9
