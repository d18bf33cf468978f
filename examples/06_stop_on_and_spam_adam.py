"""Gradients that spike, with Adam and with SPAMAdam; and a training that is ended before it wastes a night.

    python examples/06_stop_on_and_spam_adam.py

Every fiftieth batch has broken targets; what counts is the loss on the others.
"""

import logging

import torch
from torch import nn

import mlflow_stability
from mlflow_stability import SPAMAdam, TrainingDiverged

logging.getLogger("mlflow").setLevel(logging.WARNING)


def train(make: type[torch.optim.Optimizer], lr: float, spikes: bool = True) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = make(model.parameters(), lr=lr)
    losses = []
    for step in range(1, 401):
        inputs = torch.randn(32, 8)
        targets = inputs[:, :1].sin() + inputs[:, 1:2]
        if spikes and step > 150 and step % 50 == 0:
            targets = targets + 3000 * torch.randn(32, 1)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


for make in (torch.optim.Adam, SPAMAdam):
    losses = train(make, lr=3e-3)
    usual = [loss for loss in losses[-200:] if loss < 1e5]
    print(f"{make.__name__:<9} mean loss of the last 200 steps, broken batches apart: {sum(usual) / len(usual):.4f}")

# "nonfinite" and numbers of your own; what a loss scaler throws away while it looks for its scale does not count.
mlflow_stability.autolog(stop_on=("nonfinite", "loss>1000"))
try:
    train(torch.optim.SGD, lr=5.0, spikes=False)
except TrainingDiverged as diverged:
    print(f"ended: {diverged}")
print(f"{mlflow_stability.current_session().step} steps were recorded until then")
