"""Ten runs of a random search: which are unstable, since when, and which parameter goes with that.

    python examples/08_compare_a_sweep.py

Trains each setting in a run of MLflow's own, and asks then. On the command line the same is
`mlflow-stability compare --experiment Default --output sweep.html`.
"""

import logging
import random

import mlflow
import torch
from torch import nn

import mlflow_stability

logging.getLogger("mlflow").setLevel(logging.WARNING)
torch.set_num_threads(1)  # threads wait for each other longer than such a small model takes
mlflow_stability.autolog(silent=True, options=mlflow_stability.Options(capture_batch=False))


def train(lr: float, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(100):
        inputs = torch.randn(32, 16)
        targets = inputs[:, :4].sum(1, keepdim=True) + 0.1 * torch.randn(32, 1)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


dice, runs = random.Random(0), []
for seed in range(10):
    setting = {"lr": round(10 ** dice.uniform(-2.5, 0), 5), "width": dice.choice((16, 32, 64)), "seed": seed}
    with mlflow.start_run() as run:
        mlflow.log_params(setting)
        train(**setting)
    runs.append(run.info.run_id)

session = mlflow_stability.current_session()
mlflow_stability.autolog(disable=True)
session.wait(120)

comparison = mlflow_stability.compare(runs)
print(comparison.summary)
for word, card in (("stablest", comparison.cards[0]), ("sickest", comparison.cards[-1])):
    print(f"the {word}, lr {card.params['lr']}: {card.verdict}")
for association in comparison.cohort.associations:
    print(association.statement)
