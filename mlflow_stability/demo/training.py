"""An ordinary training script; two lines of it are ours.

    python -m mlflow_stability.demo.training [NAME] [--steps 400] [--seed 0] [--ill] [--record | --autopilot]

NAME is a simulation; with `--ill`, what it is about goes wrong. Prints a line of JSON for each step, and at the end the
run that it was recorded into; `mlflow-stability demo` and `mlflow-stability simulate` show them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any

import torch

import mlflow_stability
from mlflow_stability import Options
from mlflow_stability.demo.failure_steps import FEWEST_STEPS
from mlflow_stability.demo.failures.catalog import SIMULATIONS
from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.loop import Notes

RUN_ID_WAIT = 120.0
OFTEN: dict[str, Any] = {
    "layers_every_n_steps": 20,
    "attention_every_n_steps": 40,
    "options": Options(sdr_check_interval=10),
}
"""What a short training asks of `autolog()`, so that it shows what a long one does."""


class PrintedLosses(list[float]):
    """Losses that are printed as they come."""

    def append(self, loss: float) -> None:
        """Add the loss of the next step."""
        super().append(loss)
        say(step=len(self), loss=loss)


def failure_of(name: str, steps: int | None) -> Failure:
    """The failure that a simulation is about."""
    module, _, attribute = SIMULATIONS[name][0].partition(":")
    found: Any = getattr(importlib.import_module(f"mlflow_stability.demo.failures.{module}"), attribute)
    return found if isinstance(found, Failure) else found(steps or FEWEST_STEPS)


def run_id() -> str | None:
    """The run; some seconds after the start it is there, or there is no store that could take it."""
    session = mlflow_stability.current_session()
    until = time.monotonic() + RUN_ID_WAIT
    while session is not None and session.run_id is None and time.monotonic() < until:
        time.sleep(0.1)
    return session.run_id if session is not None else None


def say(**what: Any) -> None:
    """One line for whoever started this."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train, and say where it was recorded."""
    parser = argparse.ArgumentParser(description="Train a small model, with or without a failure.")
    parser.add_argument("name", nargs="?", default="demo", choices=SIMULATIONS)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ill", action="store_true", help="let the failure happen")
    parser.add_argument("--record", action="store_true", help="record it with autolog()")
    parser.add_argument("--autopilot", action="store_true", help="record it with autolog(rollback=True)")
    parser.add_argument("--title", default="mlflow-stability demo", help="name of the run")
    options = parser.parse_args()
    torch.set_num_threads(1)  # several of these run side by side
    failure = failure_of(options.name, options.steps)
    say(what=failure.what, causes=failure.causes)
    if options.autopilot or options.record:
        often = {} if options.name == "demo" else OFTEN
        mlflow_stability.autolog(rollback=options.autopilot, extra_tags={"mlflow.runName": options.title}, **often)
    task = failure.task(options.seed)
    say(parameters=sum(each.numel() for each in task.model.parameters()))
    failure.train_task(task, options.seed, ill=options.ill, notes=Notes(PrintedLosses()), steps=options.steps)
    if options.autopilot or options.record:
        say(run_id=run_id())


if __name__ == "__main__":
    main()
