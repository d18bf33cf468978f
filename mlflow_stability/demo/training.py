"""An ordinary training script; two lines of it are about mlflow-stability.

    python -m mlflow_stability.demo.training [NAME] [--steps 400] [--seed 0] [--ill] [--record | --autopilot]

NAME is a simulation; with `--ill`, its failure happens. Prints a line of JSON for each step, and at the end the run
that it was recorded into; `mlflow-stability demo` and `mlflow-stability simulate` show them.
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
from mlflow_stability.demo.catalog import MIN_STEPS, SIMULATIONS
from mlflow_stability.demo.training_loop import Failure, Notes

RUN_ID_WAIT = 120.0
SHORT_INTERVALS: dict[str, Any] = {
    "layers_every_n_steps": 20,
    "attention_every_n_steps": 40,
    "options": Options(sdr_check_interval=10),
}
"""Arguments of `autolog()` with which a short training shows what a long one does."""


class PrintedLosses(list[float]):
    def append(self, loss: float) -> None:
        super().append(loss)
        print_json(step=len(self), loss=loss)


def failure_of(name: str, steps: int | None) -> Failure:
    module, _, attribute = SIMULATIONS[name][0].partition(":")
    failure: Any = getattr(importlib.import_module(f"mlflow_stability.demo.{module}"), attribute)
    return failure if isinstance(failure, Failure) else failure(steps or MIN_STEPS)


def run_id() -> str | None:
    """Return the run, which exists some seconds after the start; None where no store accepts it."""
    session = mlflow_stability.current_session()
    deadline = time.monotonic() + RUN_ID_WAIT
    while session is not None and session.run_id is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return session.run_id if session is not None else None


def print_json(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
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
    print_json(what=failure.what, causes=failure.causes)
    if options.autopilot or options.record:
        intervals = {} if options.name == "demo" else SHORT_INTERVALS
        tags = {"mlflow.runName": options.title}
        mlflow_stability.autolog(rollback=options.autopilot, extra_tags=tags, **intervals)
    task = failure.task(options.seed)
    print_json(parameters=sum(parameter.numel() for parameter in task.model.parameters()))
    failure.train_task(task, options.seed, ill=options.ill, notes=Notes(PrintedLosses()), steps=options.steps)
    if options.autopilot or options.record:
        print_json(run_id=run_id())


if __name__ == "__main__":
    main()
