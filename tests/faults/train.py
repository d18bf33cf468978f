"""A tiny training that ends in the way its first argument names; run as a script of its own.

    python train.py ENDING STEPS [SECONDS_A_STEP]

It prints a line for each step that is complete, so that whoever started it knows what must arrive.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mlflow_stability


def end(how: str) -> None:
    match how:
        case "exception":
            raise ValueError("the data ran out")
        case "exit":
            sys.exit(3)
        case "os_exit":
            os._exit(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "ctrl_c" | "sigterm" | "wait":
            time.sleep(60)  # whoever started this sends the signal
        case "out_of_memory":
            resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
            torch.empty(2**34, dtype=torch.uint8)


def main(how: str, steps: int, seconds: float) -> None:
    mlflow_stability.autolog(strict=True)
    if os.environ.get("OWN_RUN"):
        import mlflow

        mlflow.start_run()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(steps * 4, 4))
    workers = 2 if how == "kill" else 0
    context = "fork" if workers else None
    for step, (batch,) in enumerate(DataLoader(data, 4, num_workers=workers, multiprocessing_context=context), 1):
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, flush=True)
        if seconds:
            time.sleep(seconds)
        if step == steps:
            end(how)  # inside the loop, so that DataLoader workers are alive


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
