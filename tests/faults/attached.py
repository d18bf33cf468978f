"""Trainings attached by hand, one after the other, as a script of its own: says how long its end took.

python attached.py HOW_MANY EXIT_WAIT
"""

from __future__ import annotations

import atexit
import sys
import time

import torch

import mlflow_stability

ended = 0.0


def main(how_many: int, exit_wait: float) -> None:
    atexit.register(lambda: print(time.monotonic() - ended, flush=True))  # runs last: it was the first
    model = torch.nn.Linear(4, 1)
    for _ in range(how_many):
        options = mlflow_stability.Options(exit_wait=exit_wait)
        with mlflow_stability.attach(model, strict=True, silent=True, options=options) as watching:
            model(torch.randn(8, 4)).pow(2).mean().backward()
            watching.step()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
    ended = time.monotonic()
