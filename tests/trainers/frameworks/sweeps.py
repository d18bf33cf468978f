"""Tools around a hand-written loop: three trials of Optuna, each in a run of its own, and a Hydra application."""

from __future__ import annotations

import os
import sys
from typing import Any

import mlflow
import torch
from torch import nn
from trainers.frameworks.raw import model_of
from trainers.script import STEPS, Script, Trainer, norm_of


def loop(script: Script, learning_rate: float, track: str = "") -> tuple[nn.Module, float]:
    """Returns the model and its last loss."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    for step in range(STEPS):
        loss = nn.functional.mse_loss(model(script.batch(torch.randn(8, 6), step)), torch.ones(8, 1))
        optimizer.zero_grad()
        loss.backward()
        script.step(model, loss, norm_of(model.parameters()), track)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model, loss.item()


def optuna(script: Script) -> None:
    import optuna

    script.autolog()
    trained: dict[str, nn.Module] = {}

    def objective(trial: Any) -> float:
        name = f"trial {trial.number}"
        with mlflow.start_run(run_name=name):
            trained[name], loss = loop(script, trial.suggest_float("lr", 0.005, 0.02, log=True), name)
        return loss

    optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).optimize(objective, n_trials=3)
    script.end(*trained.values(), tracks=tuple(trained))


def hydra(script: Script) -> None:
    os.environ["HYDRA_MAIN_MODULE"] = "__main__"  # this file stands for the user's
    import hydra
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="config", node={"lr": 0.01})

    @hydra.main(version_base=None, config_path=None, config_name="config")
    def application(config: Any) -> None:
        script.autolog()
        model, _ = loop(script, config.lr)
        script.end(model)

    sys.argv[1:] = ["lr=0.02"]
    application()


TRAINERS = [
    Trainer("Optuna", optuna, packages=("optuna",), shown=("optuna",)),
    Trainer("Hydra", hydra, packages=("hydra-core",), shown=("hydra-core",)),
]
