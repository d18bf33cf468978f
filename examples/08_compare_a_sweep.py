"""Eighteen runs of a sweep: which are unstable, since when, and which of their parameters goes with that.

    python examples/08_compare_a_sweep.py

Trains each setting once, in a run of MLflow's own, and asks then. On the command line the same is
`mlflow-stability compare --experiment sweep --output sweep.html`.
"""

import itertools
import logging

import mlflow
import torch
from torch import nn

import mlflow_stability

logging.getLogger("mlflow").setLevel(logging.WARNING)
torch.set_num_threads(1)  # threads wait for each other longer than such a small model takes
mlflow.set_experiment("sweep")
mlflow_stability.autolog(silent=True)


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


for lr, width, seed in itertools.product((0.01, 0.1, 1.0), (16, 32), range(3)):
    with mlflow.start_run(run_name=f"lr {lr}, width {width}, seed {seed}"):
        mlflow.log_params({"lr": lr, "width": width, "seed": seed})
        train(lr, width, seed)

session = mlflow_stability.current_session()
mlflow_stability.autolog(disable=True)
session.wait(120)

found = mlflow_stability.compare(experiment="sweep")
print(found.summary)
print(f"the stablest: {found.cards[0].name}: {found.cards[0].verdict}")
print(f"the sickest:  {found.cards[-1].name}: {found.cards[-1].verdict}")
for each in found.cohort.groups:
    print(f"{each.unstable} of {len(each.sources)} unstable: {each.label}")
for each in found.cohort.associations:
    print(f"goes with instability: {each.statement}")
