"""A small training whose recording goes to the store that MLFLOW_TRACKING_URI names; run as a script of its own.

python train.py STEPS [SECONDS_A_STEP]
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
from torch import nn

import mlflow_stability

CHECKPOINTS_KEPT = 2
FIRST_STEPS = 12


def main(steps: int, seconds: float) -> None:
    mlflow_stability.autolog(
        strict=True,
        rollback=mlflow_stability.RollbackPolicy(rollback_checkpoint_interval=40, max_checkpoints=CHECKPOINTS_KEPT),
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    took, cpu = [], []
    for _ in range(steps):
        began, used = time.perf_counter(), time.thread_time()
        inputs = torch.randn(16, 4)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append((time.perf_counter() - began) * 1e3)
        cpu.append((time.thread_time() - used) * 1e3)
        time.sleep(seconds)
    took, cpu = took[FIRST_STEPS:], cpu[FIRST_STEPS:]
    print(statistics.fmean(cpu), statistics.median(took), max(took), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
