"""`demo`: an ordinary script trains with autolog(), then its run is read back and shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mlflow_stability.cli.run_view import show_run
from mlflow_stability.cli.terminal import notes_console, result_console
from mlflow_stability.errors import SettingsError, StabilityError, TrackingError


@click.command("demo")
@click.option("--steps", default=300, show_default=True, type=click.IntRange(20, 100_000), help="How long to train.")
def command(steps: int) -> None:
    """Train a tiny GPT for under a minute and show its run.

    The training is a script like any other, in a process of its own: python -m mlflow_stability.demo.training. It is
    recorded where MLflow would log to from here: MLFLOW_TRACKING_URI, else mlflow.db in this directory.
    """
    if find_spec("torch") is None:
        raise StabilityError("The demo trains a model and needs PyTorch: pip install 'mlflow-stability[demo]'")
    if os.environ.get("MLFLOW_STABILITY_DISABLE", "") not in ("", "0"):
        raise SettingsError("MLFLOW_STABILITY_DISABLE is set, so nothing would be recorded. Unset it for the demo.")
    notes = notes_console()
    notes.print(f"Training a GPT of a quarter million parameters for {steps} steps ...")
    run_id = train(steps, notes)
    if run_id is None:
        raise TrackingError(
            "The training is done, but the tracking store has not taken its run yet. Nothing is lost: run "
            "`mlflow-stability doctor` to see why, and `mlflow-stability sync` when the store answers."
        )
    show_run(result_console(), run_id)


def train(steps: int, notes: Console) -> str | None:
    """Run the script to its end, delivery included; the id of its run, if there is one by then."""
    script = [sys.executable, "-m", "mlflow_stability.demo.training", "--steps", str(steps)]
    run_id: str | None = None
    where, how = TextColumn("step {task.completed} of {task.total}"), TextColumn("loss {task.fields[loss]}")
    with Progress(where, BarColumn(30), how, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        task = bar.add_task("", total=steps, loss="")
        with subprocess.Popen(script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as training:
            for said in _lines_of(training):
                run_id = said.get("run_id", run_id)
                if "step" in said:
                    bar.update(task, completed=said["step"], loss=f"{said['loss']:.3f}")
    if training.returncode != 0:
        raise StabilityError(f"The training script ended with exit code {training.returncode}; see what it said above.")
    return run_id


def _lines_of(training: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert training.stdout is not None
    for line in training.stdout:
        if line.startswith("{"):
            yield json.loads(line)
