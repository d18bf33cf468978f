from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from importers.reading import curve, history, metric

from mlflow_stability.importers.field_names import metric_names

N = range(1, 13)


def rllib(n: int) -> dict[str, object]:
    """A row as RLlib wrote it before its new stack."""
    return {
        "episode_reward_mean": n * 1.5,
        "episode_len_mean": 100.0,
        "hist_stats": {"episode_reward": [1.0] * 10},
        "sampler_results": {"episode_reward_mean": n * 1.5, "hist_stats": {"episode_lengths": [1]}},
        "custom_metrics": {"apples_eaten": n / 2},
        "num_healthy_workers": 2,
        "timesteps_total": n * 4000,
        "training_iteration": n,
        "time_this_iter_s": 3.0,
        "time_total_s": n * 3.0,
        "timestamp": 1600000000 + n,
        "done": False,
        "trial_id": "00000",
        "config": {"lr": 0.001, "model": {"dim": 84}},
        "info": {
            "learner": {"default_policy": {"learner_stats": {"total_loss": 10.0 / n, "kl": 0.01, "cur_lr": 5e-5}}},
            "num_env_steps_sampled": n * 4000,
        },
        "perf": {"cpu_util_percent": 30.0},
        "timers": {"learn_time_ms": 1000.0},
    }


def new_stack(n: int) -> dict[str, object]:
    return {
        "env_runners": {
            "episode_return_mean": n * 1.5,
            "num_episodes": 3,
            "env_to_module_connector": {"timers": {"a": 1.0}},
        },
        "learners": {"default_policy": {"total_loss": 10.0 / n, "num_trainable_parameters": 12.0}},
        "num_env_steps_sampled_lifetime": n * 4000,
        "fault_tolerance": {"num_healthy_workers": 2},
        "training_iteration": n,
        "time_this_iter_s": 3.0,
        "time_total_s": n * 3.0,
        "config": {"lr": 0.001},
    }


def flat(row: dict[str, object], prefix: str = "") -> dict[str, object]:
    by_name: dict[str, object] = {}
    for name, value in row.items():
        by_name.update(flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return by_name


def written(rows: list[dict[str, object]], how: str) -> str:
    if how == "result.json":
        return "".join(json.dumps(row) + "\n" for row in rows)
    text = io.StringIO()
    table = csv.DictWriter(text, list(flat(rows[0])))
    table.writeheader()
    table.writerows(map(flat, rows))
    return text.getvalue()


@pytest.mark.parametrize("how", ["result.json", "progress.csv"])
def test_of_rllib_s_hundreds_of_numbers_those_that_matter_are_read(tmp_path: Path, how: str) -> None:
    run = history(tmp_path, written([rllib(n) for n in N], how), how)
    assert {item.name for item in run.metrics if not item.meaning.bookkeeping} == {
        "episode_reward_mean",
        "episode_len_mean",
        "custom_metrics/apples_eaten",
        "info/learner/default_policy/learner_stats/total_loss",
        "info/learner/default_policy/learner_stats/kl",
        "info/learner/default_policy/learner_stats/cur_lr",
    }
    assert curve(run, "info/learner/default_policy/learner_stats/total_loss") == [(n, 10.0 / n) for n in N]
    assert metric(run, "info/learner/default_policy/learner_stats/total_loss").meaning.quantity == "loss"


@pytest.mark.parametrize("how", ["result.json", "progress.csv"])
def test_rllib_s_new_stack_is_read_too(tmp_path: Path, how: str) -> None:
    run = history(tmp_path, written([new_stack(n) for n in N], how), how)
    names = {item.name for item in run.metrics if not item.meaning.bookkeeping}
    assert names - {"num_env_steps_sampled_lifetime"} == {
        "env_runners/episode_return_mean",
        "learners/default_policy/total_loss",
    }
    assert curve(run, "learners/default_policy/total_loss") == [(n, 10.0 / n) for n in N]


def test_what_a_user_reports_to_tune_is_read_whatever_its_name(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"mse": 4.0 / n, "anything": 2.0, "training_iteration": n, "time_this_iter_s": 1.0, "time_total_s": 1.0 * n}
        | {"config": {"lr": 0.1}}
        for n in N
    ]
    run = history(tmp_path, written(rows, "result.json"), "result.json")
    assert {entry.name for entry in run.metrics} == {"mse", "anything"}
    assert curve(run, "mse") == [(n, 4.0 / n) for n in N]


def test_names_that_are_not_ray_s_are_all_read() -> None:
    assert metric_names(("perf/speed", "timers/a", "loss", "config/lr")) == {
        "perf/speed",
        "timers/a",
        "loss",
        "config/lr",
    }


def test_a_validation_of_mmdetection_is_at_the_last_step_of_its_epoch(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"env_info": "sys.platform: linux", "config": "model = dict()", "seed": 0}]
    for epoch in (1, 2, 3):
        train = {"mode": "train", "epoch": epoch, "lr": 0.02, "loss_cls": 0.5, "loss": 2.0 / epoch}
        rows.extend({**train, "iter": n} for n in range(50, 251, 50))
        rows.append({"mode": "val", "epoch": epoch, "iter": 1250, "lr": 0.02, "bbox_mAP": 0.1 * epoch})
    run = history(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "20200101.log.json")
    ends = [step for step, _ in curve(run, "loss")][4::5]
    assert [step for step, _ in curve(run, "val/bbox_mAP")] == ends
    assert metric(run, "loss").series.attempts.max() == 0
