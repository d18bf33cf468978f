"""A small training whose recording goes to the store that MLFLOW_TRACKING_URI names; run as a script of its own.

python train.py STEPS [SECONDS_A_STEP]
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import mlflow_stability

CHECKPOINTS_KEPT = 2


def main(steps: int, seconds: float) -> None:
    mlflow_stability.autolog(
        strict=True, rollback=True, rollback_checkpoint_interval=40, max_checkpoints=CHECKPOINTS_KEPT
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    took, cpu = [], time.thread_time()
    for _ in range(steps):
        began = time.perf_counter()
        inputs = torch.randn(16, 4)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - began)
        time.sleep(seconds)
    print(time.thread_time() - cpu, sum(took), max(took[1:]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
