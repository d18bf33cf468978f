"""Each trial of a sweep has a recording of its own, with its parameters, as Optuna, Ray Tune and Hydra run them.

The libraries themselves are rows of the table in `tests/trainers/`; here their functions are replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import mlflow
import pytest
import torch
from scenarios.flying import Flown, flying
from scenarios.watching import batches, mse, tiny_model

from mlflow_stability.session.training_facts import running_trial
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.run import Fact, Opening

RATES = (0.1, 0.05)


def train(rate: float, steps: int = 3) -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for batch in batches(steps):
        mse(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def in_module(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType(name)
    exec(code, vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def run_trial(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, float], None]:
    """As Optuna runs an objective."""
    code = "def _run_trial(trial, objective):\n    objective()"
    module = in_module("optuna.study._optimize", code, monkeypatch)

    def run(number: int, rate: float) -> None:
        frozen = SimpleNamespace(params={"lr": rate})
        trial = SimpleNamespace(study=SimpleNamespace(study_name="s"), number=number, _cached_frozen_trial=frozen)
        module._run_trial(trial, lambda: train(rate))

    return run


def trials_of(flown: Flown) -> list[tuple[str, list[str], int]]:
    """Of each recording the name of its run, the rates of its trial, and how many steps it has."""
    return sorted(
        (
            next(record.tags.get("mlflow.runName", "") for record in records if isinstance(record, Opening)),
            [record.value for record in records if isinstance(record, Fact) and record.key == "trial.lr"],
            len({record.step for record in records if isinstance(record, StepReading)}),
        )
        for records in flown.recordings
    )


def test_trials_in_one_process_and_what_comes_after_them_have_recordings_of_their_own(
    run_trial: Callable[[int, float], None], tmp_path: Path
) -> None:
    with flying(tmp_path) as flown:
        for number, rate in enumerate(RATES):
            run_trial(number, rate)
        train(0.01, steps=4)  # with the best parameters
    assert trials_of(flown) == [("", [], 4), ("trial 0", ["0.1"], 3), ("trial 1", ["0.05"], 3)]


def test_a_name_that_the_script_gives_to_its_runs_stays(
    run_trial: Callable[[int, float], None], tmp_path: Path
) -> None:
    with flying(tmp_path, extra_tags={"mlflow.runName": "mine"}) as flown:
        run_trial(0, 0.1)
    assert trials_of(flown) == [("mine", ["0.1"], 3)]


def test_a_run_that_the_script_starts_for_all_trials_has_all_of_them(
    run_trial: Callable[[int, float], None], sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    with flying(tmp_path) as flown, mlflow.start_run():
        for number, rate in enumerate(RATES):
            run_trial(number, rate)
    assert trials_of(flown) == [("", ["0.1"], 6)]
    assert [record.value for record in flown.records if isinstance(record, Fact) and record.key == "trial_1.lr"] == [
        "0.05"
    ]


def test_the_configuration_of_a_trial_of_tune_is_found_in_the_thread_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "class Trainable:\n    trial_id = 'a1'\n    config = {'lr': 0.1}\n    def run(self, f):\n        return f()"
    module = in_module("ray.tune.trainable.function_trainable", code, monkeypatch)
    finished = module.Trainable().run(running_trial)
    assert (finished.name, finished.parameters) == ("trial a1", {"lr": 0.1})


def test_a_job_of_hydra_has_what_was_given_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(
        overrides=SimpleNamespace(task=["lr=0.1", "+model.width=8", "~comment"]),
        mode=SimpleNamespace(name="MULTIRUN"),
        job=SimpleNamespace(num=2),
    )
    kind = SimpleNamespace(initialized=lambda: True, get=lambda: config)
    monkeypatch.setitem(sys.modules, "hydra.core.hydra_config", SimpleNamespace(HydraConfig=kind))
    result = running_trial()
    assert result is not None
    assert (result.name, result.parameters) == ("job 2", {"lr": "0.1", "model.width": "8"})
    config.mode.name = "RUN"
    single = running_trial()
    assert single is not None
    assert single.name == ""


def test_a_library_that_keeps_its_trials_elsewhere_is_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    module = in_module("optuna.study._optimize", "def _run_trial(trial, f):\n    return f()", monkeypatch)
    assert module._run_trial(SimpleNamespace(number=1), running_trial) is None
    assert running_trial() is None
