"""A training is killed in the middle, and another process goes on from its last good state, bit for bit.

    python examples/05_restore_in_a_new_process.py

What is kept to go back to outlives the process: on its disk, and in its run. The batches here depend on the step alone.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile

import mlflow
import torch
from torch import nn

import mlflow_stability

logging.getLogger("mlflow").setLevel(logging.WARNING)
STEPS, KILLED_AT = 400, 270


def train(run_id: str | None, ends: int | None = None) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = 1
    if run_id is not None and ends is None:
        resumed = mlflow_stability.restore(model, optimizer, run_id=run_id)
        print(f"goes on after step {resumed.step}, at a loss of {resumed.loss:.4f}", flush=True)
        first = resumed.step + 1
    for step in range(first, STEPS + 1):
        dice = torch.Generator().manual_seed(step)
        inputs = torch.randn(32, 8, generator=dice)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :1].sin() + inputs[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == ends:
            os.kill(os.getpid(), signal.SIGKILL)
    return loss.item()


if len(sys.argv) > 1:
    with mlflow.start_run(run_id=sys.argv[1]):
        mlflow_stability.autolog(rollback=mlflow_stability.RollbackPolicy(rollback_checkpoint_interval=50))
        print(f"final loss after a restart {train(sys.argv[1], KILLED_AT if 'first' in sys.argv else None):.9f}")
else:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLFLOW_STABILITY_JOURNAL_DIR"] = folder
        run_id = mlflow.MlflowClient().create_run("0").info.run_id
        for process in ("first", "second"):
            done = subprocess.run([sys.executable, __file__, run_id, process], check=False)
            print(f"the {process} process ended with {done.returncode}", flush=True)
    print(f"final loss without one    {train(None):.9f}")
