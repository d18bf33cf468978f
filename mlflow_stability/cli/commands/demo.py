"""`demo` and `simulate`: trainings that go wrong, beside others, and their diagnosis."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from mlflow_stability.analysis.diagnose import diagnose
from mlflow_stability.cli.options import journal_root
from mlflow_stability.cli.output import notes_console, present
from mlflow_stability.demo import processes
from mlflow_stability.demo.catalog import (
    LEARNING_RATE_FACTOR,
    MIN_STEPS,
    SIMULATIONS,
    DemoFaults,
    demo_faults,
    known_simulation,
)
from mlflow_stability.demo.processes import Training
from mlflow_stability.demo.simulate import Simulation, run_simulation
from mlflow_stability.diagnosis.run_card import final_loss, last_part
from mlflow_stability.errors import TORCH_IS_MISSING, SettingsError, StabilityError, TrackingError
from mlflow_stability.kinds.reported.autopilot import SkippedStepFacts
from mlflow_stability.kinds.reported.rollback import RollbackFacts, rollbacks_kept
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import render
from mlflow_stability.reports.run_terminal import show_gist
from mlflow_stability.reports.terminal_kit import TerminalWriter, draw
from mlflow_stability.tracking.client import RunPage, run_page
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.tracking.run_files import log_report
from mlflow_stability.vocabulary.result import Diagnosis, Finding
from mlflow_stability.vocabulary.text.phrases import counted, number_text, times

CURVE_ROWS = 4
AUTOPILOT_KINDS = ("rollback", "step_skipped")


@dataclass(frozen=True, slots=True)
class Trainings:
    twin: Training = field(default_factory=lambda: Training("healthy reference"))
    bare: Training = field(default_factory=lambda: Training("bare", ("--ill",)))
    rescued: Training = field(default_factory=lambda: Training("autolog(rollback=True)", ("--ill", "--autopilot")))

    @property
    def all(self) -> tuple[Training, Training, Training]:
        return self.twin, self.bare, self.rescued


@dataclass(frozen=True, slots=True)
class _Outcome:
    trainings: Trainings
    faults: DemoFaults
    seconds: float
    diagnosis: Diagnosis  # of the recorded training, as are the rest
    events: tuple[Finding, ...]
    page: RunPage
    reports: Path | None  # the folder with the report; None where it is not on this machine
    journal: Path | None  # the journal folder, unless it was removed


@click.command("demo")
@click.option(
    "--steps",
    default=MIN_STEPS,
    show_default=True,
    type=click.IntRange(MIN_STEPS, 100_000),
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
    outcome = _run_demo(steps, notes)
    present(lambda out: _show(out, outcome))


def _run_demo(steps: int, notes: Console) -> _Outcome:
    start = time.monotonic()
    trainings = train_demo(steps, notes)
    seconds = time.monotonic() - start
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
        events = tuple(event for _, event in RunReader(run_id).event_lines() if isinstance(event, Finding))
        page = run_page(run_id)
    journal = journal_root()
    kept = journal if journal.is_dir() else None
    return _Outcome(trainings, demo_faults(steps), seconds, diagnosis, events, page, folder, kept)


def train_demo(steps: int, notes: Console) -> Trainings:
    """Run the trainings of the demo to their ends, delivery included."""
    trainings = Trainings()
    for training in trainings.all:
        training.options = ("demo", "--steps", str(steps), *training.options)
    train_with_progress(trainings.all, notes, steps)
    return trainings


def train_with_progress(trainings: Sequence[Training], notes: Console, steps: int | None = None) -> None:
    """Run trainings to their ends; on a terminal, with a bar for each. Other output of theirs is shown at once."""
    with _bars(steps, trainings, notes) as (progress, tasks):

        def show_step(number: int) -> None:
            losses = trainings[number].losses
            progress.update(tasks[number], completed=len(losses), loss=f"loss {number_text(losses[-1])}")

        def show_line(number: int, line: str) -> None:
            notes.print(Text(f"{trainings[number].title}: {plain(line)}"), soft_wrap=True)

        processes.train(trainings, show_step, show_line)


@contextlib.contextmanager
def _bars(steps: int | None, trainings: Sequence[Training], notes: Console) -> Iterator[tuple[Progress, list[TaskID]]]:
    columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("step {task.completed}  {task.fields[loss]}")
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        yield progress, [progress.add_task(training.title, total=steps, loss="") for training in trainings]


def _show(out: TerminalWriter, outcome: _Outcome) -> None:
    twin, faults = outcome.trainings.twin, outcome.faults
    out.rule("mlflow-stability demo")
    introduction = (
        f"A GPT of {twin.parameters:,} parameters was trained three times side by side, with the same weights "
        f"and the same batches: {len(twin.losses)} steps each, {outcome.seconds:.0f} s in all. Two of them have "
        "the same faults."
    )
    out.console.print(out.text(introduction))
    injected = {
        f"steps {faults.first} to {faults.last}": f"Learning rate {LEARNING_RATE_FACTOR} times too high.",
        f"step {faults.empty}": "Empty batch: only padding, so the mean loss is 0 / 0 = NaN.",
    }
    out.section("Injected faults", ((out.text(steps), out.text(text)) for steps, text in injected.items()))
    _show_table(out, outcome)
    for training in outcome.trainings.all:
        show_curve(out, training.title, training.losses, f"final loss {number_text(final_of(training))}")
    acts = [event for event in outcome.events if event.kind in AUTOPILOT_KINDS]
    out.section("What the autopilot did", ((out.text(f"step {act.step}"), out.text(act.message)) for act in acts))
    show_gist(out, outcome.diagnosis, "Diagnosis (mlflow-stability diagnose)")
    _show_next_steps(out, outcome)


def final_of(training: Training) -> float:
    """Return the loss at the end of a training; NaN where the last step was."""
    final = final_loss(np.array(training.losses))
    return math.nan if final is None else final


def _non_finite_from(training: Training) -> int | None:
    """Return the first step after the last finite loss; None where the last loss was finite."""
    finite = [step for step, loss in enumerate(training.losses, start=1) if math.isfinite(loss)]
    after = finite[-1] + 1 if finite else 1
    return after if after <= len(training.losses) else None


def _show_table(out: TerminalWriter, outcome: _Outcome) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("training", no_wrap=True)
    table.add_column("final loss", no_wrap=True, justify="right")
    table.add_column("result", overflow="fold")
    twin, bare, rescued = outcome.trainings.all
    end = _end(bare, twin)
    dead = "Dead: " if _non_finite_from(bare) is not None else ""
    results = (
        (twin, "No problems.", "green"),
        (bare, f"{dead}{end}.", "bold red"),
        (rescued, f"{_rescue(outcome)}.", "green"),
    )
    for training, result, style in results:
        table.add_row(out.text(training.title), out.text(number_text(final_of(training))), out.text(result, style))
    out.console.print(Padding(table, (1, 0, 0, 0)))
    # Two numbers are shown for the final loss, and each needs a name.
    count, tenth = last_part(np.array(twin.losses)), len(twin.losses) // 10
    note = f"Final loss: median of the last {count} steps; in the diagnosis below, of up to {tenth}."
    out.console.print(out.text(note, "dim"))


def _rescue(outcome: _Outcome) -> str:
    """Return `Rolled back once (45 steps lost), 1 step skipped, ends 2.7% above the reference`."""
    facts = [event.facts for event in outcome.events]
    rollbacks = rollbacks_kept(facts)
    skipped = max((act.skipped_steps for act in facts if isinstance(act, SkippedStepFacts)), default=0)
    lost = sum(act.steps_lost for act in facts if isinstance(act, RollbackFacts))
    acts = [f"Rolled back {times(rollbacks)} ({counted(lost, 'step')} lost)"] if rollbacks else []
    acts += [f"{counted(skipped, 'step')} skipped"] if skipped else []
    end = _end(outcome.trainings.rescued, outcome.trainings.twin)
    return ", ".join([*acts, end[:1].lower() + end[1:] if acts else end])


def _end(training: Training, twin: Training) -> str:
    """Return `NaN from step 320`, or `Ends 2.7% above the reference`."""
    dead = _non_finite_from(training)
    if dead is not None:
        return f"{number_text(training.losses[-1])} from step {dead}"
    ratio = final_of(training) / final_of(twin) - 1
    return f"Ends {abs(ratio):.1%} {'above' if ratio >= 0 else 'below'} the reference"


def show_curve(out: TerminalWriter, title: str, losses: Sequence[float], last: str) -> None:
    values = np.array(losses)
    finite = values[np.isfinite(values)]
    logarithmic = bool(finite.size and finite.min() > 0)
    head, width = out.text(title, "bold cyan"), out.console.width - 2
    last += ", log scale" if logarithmic else ""
    out.console.print()
    out.console.print(Text.assemble(head, " " * max(1, width - head.cell_len - len(last)), last))
    steps = np.arange(1, values.size + 1)
    for line in draw(steps, values, width, CURVE_ROWS, dots=out.unicode, logarithmic=logarithmic):
        out.console.print(Text(line, "cyan", no_wrap=True))


def _show_next_steps(out: TerminalWriter, outcome: _Outcome) -> None:
    run_id = outcome.diagnosis.source
    report = "stability/report.html, among the artifacts of the run"
    if outcome.reports is not None:
        report = str(_relative(outcome.reports) / "report.html")
    left_on_disk = []
    if outcome.journal is not None:
        journal = _relative(outcome.journal)
        left_on_disk = [f"{journal}/ (checkpoints and captured batches; git ignores it)", f"rm -r {journal}"]
    sections = {
        "Report": [report],
        "Full diagnosis": [f"mlflow-stability diagnose {run_id}"],
        "All steps, in Python": [f'mlflow_stability.load_run("{run_id}")'],
        "Run in MLflow": [way for way in (outcome.page.command, outcome.page.url) if way],
        "Left on disk": left_on_disk,
    }
    for title, lines in sections.items():
        if lines:
            out.console.print(Padding(out.text(title, "bold"), (1, 0, 0, 0)))
        for line in lines:  # never wrapped, so that they can be copied
            out.console.print(Text("  ").append(out.text(line)), soft_wrap=True)


def _relative(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


@click.command("simulate")
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="List all simulations.")
@click.option("--seed", default=0, show_default=True, help="Seed of weights and batches.")
@click.option("--steps", default=None, type=click.IntRange(1, 100_000), help="Number of steps.  [default: its own]")
@click.option("--rollback", is_flag=True, help="Record the failure with autolog(rollback=True).")
@click.option("--no-answer", is_flag=True, help="Do not say what went wrong: to practise.")
def simulate(name: str | None, listed: bool, seed: int, steps: int | None, rollback: bool, no_answer: bool) -> None:
    """Train a failure beside its healthy twin, and diagnose it.

    Both are recorded as runs, in MLFLOW_TRACKING_URI, else in mlflow.db in this directory. They have the same weights
    and batches until something goes wrong. Without NAME, all simulations are listed.
    """
    if listed or name is None:
        present(_show_simulations)
        return
    if find_spec("torch") is None:
        raise StabilityError(f"simulate {TORCH_IS_MISSING}")
    notes = notes_console()

    def run(trainings: Sequence[Training]) -> None:
        train_with_progress(trainings, notes, steps)

    simulation = run_simulation(known_simulation(name), seed, rollback, steps, run)
    present(lambda out: _show_simulation(out, simulation, answer=not no_answer))


def _show_simulations(out: TerminalWriter) -> None:
    rows = ((out.text(name, "bold"), out.text(sentence)) for name, (_, sentence) in SIMULATIONS.items())
    out.section("Simulations", rows, space=False)
    out.paragraph("Run one", f"mlflow-stability simulate {next(iter(SIMULATIONS))}", names=True)


def _show_simulation(out: TerminalWriter, simulation: Simulation, *, answer: bool) -> None:
    out.rule("mlflow-stability simulate" + (f" {simulation.name}" if answer else ""))
    if answer:
        out.paragraph("What goes wrong", simulation.what)
    for title, losses in (("healthy twin", simulation.healthy_losses), ("failure", simulation.losses)):
        show_curve(out, title, losses, f"last loss {number_text(losses[-1])}")
    if answer:
        show_gist(out, simulation.diagnosis, "Diagnosis of the failure (mlflow-stability diagnose)")
        cause = f"{simulation.cause or 'none'} (right: {', '.join(simulation.causes)})"
        out.section("Right cause", [(out.text("yes" if simulation.found else "no"), out.text(cause))])
        difference = simulation.comparison.first_difference
        out.paragraph("Comparison", difference.sentence if difference else "")
    next_commands = (
        f"mlflow-stability diagnose {simulation.run_id}",
        f"mlflow-stability checklist --run {simulation.run_id}",
        f"mlflow-stability compare {simulation.healthy_run_id[:8]} {simulation.run_id[:8]}",
    )
    out.console.print()
    out.console.print(out.text("Look further" if answer else "What went wrong, and why?", "bold"))
    for line in next_commands:
        out.console.print(Text("  ").append(out.text(line)), soft_wrap=True)
