"""`demo`: a training that goes wrong, bare and with the autopilot, side by side, and what is left of it afterwards."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import click
from rich.console import Console

from mlflow_stability.analysis.diagnose import diagnose
from mlflow_stability.cli.commands.demo_trainings import train
from mlflow_stability.cli.commands.demo_view import DemoOutcome, show
from mlflow_stability.cli.kit.options import journal_root
from mlflow_stability.cli.kit.output import present
from mlflow_stability.cli.kit.terminal import notes_console
from mlflow_stability.demo.failure_steps import FEWEST_STEPS, troubles_in
from mlflow_stability.errors import TORCH_IS_MISSING, SettingsError, StabilityError, TrackingError
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import render
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.tracking.store.client import run_page
from mlflow_stability.tracking.write.run_files import log_report
from mlflow_stability.vocabulary.result import Finding


@click.command("demo")
@click.option(
    "--steps",
    default=FEWEST_STEPS,
    show_default=True,
    type=click.IntRange(FEWEST_STEPS, 100_000),
    help="Number of training steps.",
)
def command(steps: int) -> None:
    """Train a tiny GPT that breaks, with and without the autopilot.

    Three trainings, each a script in its own process: a healthy one, the same with two faults, and the same faults with
    autolog(rollback=True). The last is recorded in MLFLOW_TRACKING_URI, else in mlflow.db in this directory.
    """
    if find_spec("torch") is None:
        raise StabilityError(
            f"The demo {TORCH_IS_MISSING} In an environment for the demo alone, "
            "pip install 'mlflow-stability[demo]' installs the tested version."
        )
    if os.environ.get("MLFLOW_STABILITY_DISABLE", "") not in ("", "0"):
        raise SettingsError("MLFLOW_STABILITY_DISABLE is set, so nothing would be recorded. Unset it to run the demo.")
    notes = notes_console()
    if notes.is_terminal:
        notes.print(f"Training a tiny GPT three times, {steps} steps each, for under a minute ...")
    outcome = told(steps, notes)
    present(lambda out: show(out, outcome))


def told(steps: int, notes: Console) -> DemoOutcome:
    """Train, and read back what was recorded."""
    began = time.monotonic()
    trainings = train(steps, notes)
    seconds = time.monotonic() - began
    run_id = trainings.rescued.run_id
    if run_id is None:
        raise TrackingError(
            "Training finished, but the tracking store has not accepted the run yet. No data is lost: run "
            "`mlflow-stability doctor` to see why, and `mlflow-stability sync` when the store answers."
        )
    with notes.status("Reading the run back ..."):
        diagnosis = diagnose(run_id)
        report = Report((diagnosis,))
        folder = log_report(run_id, None, {f"report.{form}": render(report, form) for form in ("html", "json")})
        events = tuple(said for _, said in RunReader(run_id).event_lines() if isinstance(said, Finding))
        page = run_page(run_id)
    journal = journal_root()
    left = journal if journal.is_dir() else None
    return DemoOutcome(trainings, troubles_in(steps), seconds, diagnosis, events, page, folder, left)
