"""An ordinary training loop; two lines of it are ours.

    python -m mlflow_stability.demo.training [--steps 300]

Prints a line of JSON now and then for `mlflow-stability demo` to show: how far it is, and at the end which run it was
recorded into.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time

import torch
from torch import Tensor
from torch.nn import functional

import mlflow_stability
from mlflow_stability.demo.char_gpt import CharGPT
from mlflow_stability.demo.text import ALPHABET, encoded

LENGTH, BATCH = 64, 16
WARM_UP = 40
RUN_ID_WAIT = 20.0


def train(steps: int) -> None:
    """Train for so many steps."""
    mlflow_stability.autolog(extra_tags={"mlflow.runName": "mlflow-stability demo"})
    torch.manual_seed(0)
    data = torch.tensor(encoded(200_000))
    model = CharGPT(len(ALPHABET), LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_lr(step, steps))
    for step in range(1, steps + 1):
        given, following = batch(data)
        loss = functional.cross_entropy(model(given).flatten(0, 1), following.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0:
            say(step=step, steps=steps, loss=loss.item())


def batch(data: Tensor) -> tuple[Tensor, Tensor]:
    """Some places in the text, and the same one character later."""
    starts = torch.randint(len(data) - LENGTH - 1, (BATCH,))
    lines = torch.stack([data[start : start + LENGTH + 1] for start in starts])
    return lines[:, :-1], lines[:, 1:]


def share_of_lr(step: int, steps: int) -> float:
    """A warm-up, then half a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def run_id() -> str | None:
    """The run; after a training of a minute it is there, or there is no store that could take it."""
    session = mlflow_stability.current_session()
    until = time.monotonic() + RUN_ID_WAIT
    while session is not None and session.run_id is None and time.monotonic() < until:
        time.sleep(0.1)
    return session.run_id if session is not None else None


def say(**what: float | str | None) -> None:
    """One line for whoever started this."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train, and say where it was recorded."""
    parser = argparse.ArgumentParser(description="Train a tiny GPT on made-up sentences.")
    parser.add_argument("--steps", type=int, default=300)
    train(parser.parse_args().steps)
    say(run_id=run_id())


if __name__ == "__main__":
    main()
