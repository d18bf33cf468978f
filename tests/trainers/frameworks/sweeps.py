"""Tools that train several times: Optuna, Ray Tune, and Hydra with one job and with several.

Each trial has a run of its own with its parameters, whether the script starts one or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import torch
from torch import nn
from trainers.frameworks.raw import model_of
from trainers.script import STEPS, Script, Trainer, norm_of

RATES = (0.005, 0.01, 0.02)


def loop(script: Script, learning_rate: float, track: str = "") -> tuple[nn.Module, float]:
    """Returns the model and its last loss."""
    model = model_of()
    script.sampled.append(learning_rate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    for step in range(STEPS):
        loss = nn.functional.mse_loss(model(script.batch(torch.randn(8, 6), step)), torch.ones(8, 1))
        optimizer.zero_grad()
        loss.backward()
        script.step(model, loss, norm_of(model.parameters()), track)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model, loss.item()


def optuna(script: Script, *, own_runs: bool) -> None:
    """Three trials; ``own_runs``: the script starts a run for each."""
    import optuna

    script.autolog()
    trained: dict[str, nn.Module] = {}

    def objective(trial: Any) -> float:
        name = f"trial {trial.number}"
        with mlflow.start_run(run_name=name) if own_runs else contextlib.nullcontext():
            trained[name], loss = loop(script, trial.suggest_float("lr", 0.005, 0.02, log=True), name)
        return loss

    optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).optimize(objective, n_trials=3)
    script.end(*trained.values(), tracks=tuple(trained))


def ray_tune(script: Script) -> None:
    """Each trial in a process of its own, one after the other; what they have noted is put together."""
    import ray
    from ray import tune

    def trial(config: dict[str, Any]) -> None:
        name = f"trial {config['number']}"
        mine = replace(script, out=script.out.with_name(f"{name}.json"))
        mine.autolog()
        model, loss = loop(mine, config["lr"], name)
        mine.end(model, tracks=(name,))
        tune.report({"loss": loss})

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=True)
    choices = [{"number": number, "lr": rate} for number, rate in enumerate(RATES)]
    for choice in choices:  # one at a time: the trials of a search would come in any order
        tune.Tuner(
            trial,
            param_space=choice,
            run_config=tune.RunConfig(name=f"table {choice['number']}", storage_path=str(Path("ray").absolute())),
        ).fit()
    ray.shutdown()
    pages = [json.loads(script.out.with_name(f"trial {row['number']}.json").read_text()) for row in choices]
    whole: dict[str, Any] = pages[0]
    for page in pages[1:]:
        for name, value in page.items():
            whole[name] = whole[name] | value if isinstance(value, dict) else whole[name] + value
    whole["finite"] = all(page["finite"] for page in pages)
    script.out.write_text(json.dumps(whole), encoding="utf-8")


def hydra(script: Script, *arguments: str) -> None:
    os.environ["HYDRA_MAIN_MODULE"] = "__main__"  # this file stands for the user's
    import hydra
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="config", node={"lr": 0.01})
    trained: list[nn.Module] = []

    @hydra.main(version_base=None, config_path=None, config_name="config")
    def application(config: Any) -> None:
        if not trained:
            script.autolog()
        trained.append(loop(script, config.lr, f"job {len(trained)}")[0])

    sys.argv[1:] = arguments
    application()
    script.end(*trained, tracks=tuple(f"job {number}" for number in range(len(trained))))


OPTUNA, TUNE, HYDRA = ("optuna",), ("ray[train,tune]",), ("hydra-core",)
MULTIRUN = ("--multirun", f"lr={','.join(map(str, RATES))}")
TRAINERS = [
    Trainer("Optuna", partial(optuna, own_runs=False), packages=OPTUNA, shown=("optuna",)),
    Trainer("Optuna, a run for each trial", partial(optuna, own_runs=True), packages=OPTUNA, shown=("optuna",)),
    Trainer("Ray Tune", ray_tune, packages=TUNE, shown=("ray",)),
    Trainer("Hydra", lambda script: hydra(script, "lr=0.02"), packages=HYDRA, shown=HYDRA),
    Trainer("Hydra, multirun", lambda script: hydra(script, *MULTIRUN), packages=HYDRA, shown=HYDRA),
]
