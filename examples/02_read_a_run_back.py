"""A spike of one step: a chart with every tenth step does not show it, the record does.

    python examples/02_read_a_run_back.py

Trains inside a run of the script's own, waits until everything is delivered, and reads it back as a DataFrame.
The batch of the spike is kept in `.mlflow-stability/batches`.
"""

import logging

import mlflow
import torch
from torch import nn

import mlflow_stability

logging.getLogger("mlflow").setLevel(logging.WARNING)
mlflow_stability.autolog(log_every_n_steps=10)

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
truth = torch.randn(8)

with mlflow.start_run() as run:
    for step in range(1, 201):
        inputs = torch.randn(32, 8)
        targets = inputs @ truth + 0.1 * torch.randn(32)
        if step == 137:
            targets = targets + 40  # one batch with broken labels
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

# At the end of a script this happens by itself; here the same process wants to read on.
session = mlflow_stability.current_session()
mlflow_stability.autolog(disable=True)
session.wait(60)

frame = mlflow_stability.load_run(run.info.run_id)
worst = frame.loc[frame["loss"].idxmax()]
print(frame[["step", "loss", "grad_norm", "grad_norm_clipped", "step_time"]].tail(3).to_string(index=False))
print(f"\nthe largest loss, {worst['loss']:.1f}, was at step {worst['step']:.0f}: norm {worst['grad_norm']:.1f}")

client = mlflow.MlflowClient()
charted = [point.value for point in client.get_metric_history(run.info.run_id, "stability/loss")]
highest = [point.value for point in client.get_metric_history(run.info.run_id, "stability/loss_max")]
print(f"of {len(frame)} steps MLflow's chart of the loss has {len(charted)} points, {max(charted):.1f} at most")
print(f"beside it, stability/loss_max keeps the highest value between two points: {max(highest):.1f}")
