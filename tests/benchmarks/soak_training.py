"""Train for very long with everything on, and then many times over, in one process; run as a script of its own.

    python soak_training.py STEPS RECORDINGS STEPS_OF_A_RECORDING

Writes `measures.jsonl`: what this process costs and holds, a hundred times in the long training and after each short
one.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TextIO

import mlflow
import psutil
import torch
from torch import nn

import mlflow_stability
from mlflow_stability import RollbackPolicy

BROKEN_EVERY = 50_000
"""Steps between batches with a NaN."""


def train(steps: int, file: TextIO | None, broken_every: int = BROKEN_EVERY) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    every = max(1, steps // 100)
    cpu, wall = time.process_time(), time.perf_counter()
    for step in range(1, steps + 1):
        inputs = torch.randn(16, 4, generator=generator)
        targets = inputs.sum(1, keepdim=True) + 0.3 * torch.randn(16, 1, generator=generator)
        if step % broken_every == 0:
            inputs[0, 0] = math.nan
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if file is not None and step % every == 0:
            spent = {"cpu": (time.process_time() - cpu) / every, "wall": (time.perf_counter() - wall) / every}
            print(json.dumps({"phase": "long", "at": step, **spent, **held()}), file=file, flush=True)
            cpu, wall = time.process_time(), time.perf_counter()


def held() -> dict[str, float]:
    process = psutil.Process()
    memory = process.memory_info().rss
    return {"time": time.time(), "rss": memory, "handles": process.num_fds(), "threads": process.num_threads()}


def main(steps: int, recordings: int, steps_of_a_recording: int) -> None:
    torch.set_num_threads(1)
    mlflow_stability.autolog(
        rollback=RollbackPolicy(max_checkpoints=2, rollback_checkpoint_interval=20_000),
        layer_metrics=True,
        representations=("norm",),
        silent=True,
    )
    with Path("measures.jsonl").open("w", encoding="utf-8") as file:
        with mlflow.start_run(run_name="long"):
            train(steps, file)
        for number in range(1, recordings + 1):
            began = time.process_time()
            with mlflow.start_run(run_name=f"short {number}"):
                train(steps_of_a_recording, None)
            cpu = (time.process_time() - began) / steps_of_a_recording
            print(json.dumps({"phase": "short", "at": number, "cpu": cpu, **held()}), file=file, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
