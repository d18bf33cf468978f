"""A learning rate leaps for fifteen steps; the training is set back inside its own loop and goes on.

    python examples/04_rollback.py

The same training three times: left to itself, with the autopilot, and without the leap. The loop knows of none of it.
"""

import logging

import mlflow
import torch
from torch import nn

import mlflow_stability
from mlflow_stability import RollbackPolicy

logging.getLogger("mlflow").setLevel(logging.WARNING)
# States are kept far more often than by default, for this training has 420 steps.
policy = RollbackPolicy(snapshot_every=20, snapshot_share=0.5, healthy_after=10, rewind=20, easing_steps=40)


def train(leap: bool = True) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: 300.0 if leap and 200 <= done < 215 else 0.999**done
    )
    losses = []
    for _ in range(420):
        inputs = torch.randn(32, 8)
        targets = inputs[:, :1].sin() + inputs[:, 1:2] + 0.1 * torch.randn(32, 1)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def tell(name: str, losses: list[float]) -> None:
    print(f"{name:<17} mean loss of the last 40 steps {sum(losses[-40:]) / 40:.4f}")


tell("without the leap:", train(leap=False))
tell("left to itself:", train())
mlflow_stability.autolog(rollback=policy, silent=True, options=mlflow_stability.Options(capture_batch=False))
with mlflow.start_run() as run:
    tell("autopilot:", train())
session = mlflow_stability.current_session()
mlflow_stability.autolog(disable=True)
session.wait(60)

record = mlflow_stability.load_run(run.info.run_id)
for row in record.index[record["attempt"].diff() > 0]:
    print(f"set back after step {record['step'][row - 1]}, at a loss of {record['loss'][row - 1]:.1f}")
