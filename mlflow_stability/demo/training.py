"""An ordinary training loop; two lines of it are ours.

    python -m mlflow_stability.demo.training [--steps 400] [--ill] [--autopilot]

With `--ill`, two things go wrong that go wrong in many a training: for some steps a schedule gives far too high a
learning rate, and a batch comes that is nothing but padding. Prints a line of JSON for each step, and at the end which
run it was recorded into; `mlflow-stability demo` shows them.
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
from mlflow_stability.demo.troubles import Troubles, troubles_in

LENGTH, BATCH = 32, 16
WARM_UP = 30
RUN_ID_WAIT = 20.0


def train(steps: int, troubles: Troubles | None) -> None:
    """Train for so many steps."""
    torch.set_num_threads(1)  # three of these run side by side
    torch.manual_seed(0)
    data, generator = torch.tensor(encoded(200_000)), torch.Generator().manual_seed(1)
    model = CharGPT(len(ALPHABET), LENGTH)
    say(parameters=sum(each.numel() for each in model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: share_of_lr(done + 1, steps, troubles))
    for step in range(1, steps + 1):
        given, following = batch(data, generator)
        counts = torch.ones(following.shape)
        if troubles is not None and step == troubles.empty:
            counts.zero_()  # all of it is padding
        loss = mean_loss(model(given), following, counts)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        say(step=step, loss=loss.item())


def batch(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some places in the text, and the same one character later."""
    starts = torch.randint(len(data) - LENGTH - 1, (BATCH, 1), generator=generator)
    lines = data[starts + torch.arange(LENGTH + 1)]
    return lines[:, :-1], lines[:, 1:]


def mean_loss(scores: Tensor, following: Tensor, counts: Tensor) -> Tensor:
    """The mean over the places that count, as it stands in many a script: 0 / 0 where none does."""
    losses = functional.cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="none")
    return (losses * counts.flatten()).sum() / counts.sum()


def share_of_lr(step: int, steps: int, troubles: Troubles | None) -> float:
    """A warm-up, then half a cosine; far too much of it where something is wrong with it."""
    share = step / WARM_UP
    if step > WARM_UP:
        share = 0.05 + 0.475 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))
    return share * troubles.factor(step) if troubles is not None else share


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
    parser = argparse.ArgumentParser(description="Train a tiny GPT on generated sentences.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ill", action="store_true", help="inject two faults")
    parser.add_argument("--autopilot", action="store_true", help="record it with rollback=True")
    options = parser.parse_args()
    if options.autopilot:
        mlflow_stability.autolog(rollback=True, extra_tags={"mlflow.runName": "mlflow-stability demo"})
    train(options.steps, troubles_in(options.steps) if options.ill else None)
    if options.autopilot:
        say(run_id=run_id())


if __name__ == "__main__":
    main()
