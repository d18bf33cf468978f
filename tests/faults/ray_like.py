"""What Ray Train does to a training, without Ray: run as a script of its own, it is the one that ends workers.

    python ray_like.py OUTCOME STEPS

A worker process trains in a thread of its own, keeps what the training raises, and asks ten times a second whether the
thread is still alive. When it is not, the worker's children are killed, those it has by then, and the worker leaves by
`os._exit`: no exit function runs, and nothing of it waits for anybody.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import psutil
import torch
from torch import nn

import mlflow_stability


class Runner:
    """Ray's `ThreadRunner`: runs a function in a thread, and keeps what it raises."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def run(self, target: object, *arguments: object) -> None:
        def caught() -> None:
            try:
                target(*arguments)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=caught, daemon=True)
        self.thread.start()


def train(outcome: str, steps: int) -> None:
    mlflow_stability.autolog(strict=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        try:
            if step == 2:
                raise KeyError("a batch that is not there")
        except KeyError as error:
            kept.append(error)  # what the training itself has dealt with is not its end
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, flush=True)
    if outcome == "crashed":
        raise ValueError("the data ran out")


kept: list[BaseException] = []


def worker(outcome: str, steps: int) -> None:
    runner = Runner()
    runner.run(train, outcome, steps)
    runner.thread.join()
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        worker(sys.argv[1], int(sys.argv[2]))
    sys.exit(subprocess.run([sys.executable, __file__, *sys.argv[1:], "worker"], check=False).returncode)
