"""Shows the results of the demo's trainings.

In: their losses, and the diagnosis and events of the recorded one. Out: what went wrong, the outcome of each, their
curves, what the autopilot did, why it had to, and where to look further.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlflow_stability.cli.commands.demo_trainings import Trainings
from mlflow_stability.demo.failure_steps import TOO_HIGH, FailureSteps
from mlflow_stability.demo.processes import Training
from mlflow_stability.diagnosis.verdict import final_loss, last_part
from mlflow_stability.kinds.reported.autopilot import SkippedStepFacts
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.reports.run.terminal import show_gist
from mlflow_stability.reports.terminal_kit import TerminalWriter, draw, number_text
from mlflow_stability.tracking.store.client import RunPage
from mlflow_stability.vocabulary.result import Diagnosis, Finding
from mlflow_stability.vocabulary.text import counted, times

CURVE_ROWS = 4
ACTS = ("rollback", "step_skipped")
"""The kinds of events in which the autopilot says what it did."""


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """Everything there is to show."""

    trainings: Trainings
    troubles: FailureSteps
    seconds: float
    diagnosis: Diagnosis
    """Of the recorded one, as are the rest."""
    events: tuple[Finding, ...]
    page: RunPage
    reports: Path | None
    """The folder that the report was put into; None where it is not on this machine."""
    journal: Path | None
    """The journal folder, where it is still there."""


def show(out: TerminalWriter, outcome: DemoOutcome) -> None:
    """All of it."""
    out.rule("mlflow-stability demo")
    out.console.print(out.text(_what_was_done(outcome)))
    out.section("Injected faults", _troubles(out, outcome.troubles))
    _show_table(out, outcome)
    for training in outcome.trainings.all:
        _show_curve(out, training)
    out.section("What the autopilot did", _acts(out, outcome))
    show_gist(out, outcome.diagnosis, "Diagnosis (mlflow-stability diagnose)")
    _show_way(out, outcome)


def final_of(training: Training) -> float:
    """What the training ended at; NaN where its last step was."""
    final = final_loss(np.array(training.losses))
    return math.nan if final is None else final


def dead_from(training: Training) -> int | None:
    """The step from which on no loss was finite; None where the last one was."""
    alive = [step for step, loss in enumerate(training.losses, start=1) if math.isfinite(loss)]
    after = alive[-1] + 1 if alive else 1
    return after if after <= len(training.losses) else None


def _what_was_done(outcome: DemoOutcome) -> str:
    one = outcome.trainings.twin
    return (
        f"A GPT of {one.parameters:,} parameters was trained three times side by side, with the same weights "
        f"and the same batches: {len(one.losses)} steps each, {outcome.seconds:.0f} s in all. Two of them have "
        "the same faults."
    )


def _troubles(out: TerminalWriter, troubles: FailureSteps) -> Iterator[tuple[Text, Text]]:
    steps = f"steps {troubles.first} to {troubles.last}"
    yield out.text(steps), out.text(f"Learning rate {TOO_HIGH} times too high.")
    yield out.text(f"step {troubles.empty}"), out.text("Empty batch: only padding, so the mean loss is 0 / 0 = NaN.")


def _show_table(out: TerminalWriter, outcome: DemoOutcome) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("training", no_wrap=True)
    table.add_column("final loss", no_wrap=True, justify="right")
    table.add_column("result", overflow="fold")
    became = (_of_the_twin(), _of_the_bare(outcome), _of_the_rescued(outcome))
    for training, (said, style) in zip(outcome.trainings.all, became, strict=True):
        table.add_row(out.text(training.title), out.text(number_text(final_of(training))), out.text(said, style))
    out.console.print(Padding(table, (1, 0, 0, 0)))
    out.console.print(out.text(_what_final_means(outcome), "dim"))


def _what_final_means(outcome: DemoOutcome) -> str:
    """Two numbers are shown for the end of a loss: each has its name."""
    losses = outcome.trainings.twin.losses
    count, tenth = last_part(np.array(losses)), len(losses) // 10
    return f"Final loss: median of the last {count} steps; in the diagnosis below, of up to {tenth}."


def _of_the_twin() -> tuple[str, str]:
    return "No problems.", "green"


def _of_the_bare(outcome: DemoOutcome) -> tuple[str, str]:
    dead = dead_from(outcome.trainings.bare)
    end = _end(outcome.trainings.bare, outcome.trainings.twin)
    return (f"Dead: {end}." if dead is not None else f"{end}."), "bold red"


def _of_the_rescued(outcome: DemoOutcome) -> tuple[str, str]:
    back = [event for event in outcome.events if event.kind == "rollback"]
    facts = [event.facts for event in outcome.events]
    skipped = max((each.skipped_steps for each in facts if isinstance(each, SkippedStepFacts)), default=0)
    lost = sum(each.steps_lost for each in facts if isinstance(each, RollbackFacts))
    done = [f"Rolled back {times(len(back))} ({counted(lost, 'step')} lost)"] if back else []
    done += [f"{counted(skipped, 'step')} skipped"] if skipped else []
    end = _end(outcome.trainings.rescued, outcome.trainings.twin)
    return ", ".join([*done, end[:1].lower() + end[1:] if done else end]) + ".", "green"


def _end(training: Training, twin: Training) -> str:
    """``NaN from step 320 on``, ``Ends 2.7% above the reference``."""
    dead = dead_from(training)
    if dead is not None:
        return f"{number_text(training.losses[-1])} from step {dead}"
    ratio = final_of(training) / final_of(twin) - 1
    return f"Ends {abs(ratio):.1%} {'above' if ratio >= 0 else 'below'} the reference"


def _show_curve(out: TerminalWriter, training: Training) -> None:
    losses = np.array(training.losses)
    finite = losses[np.isfinite(losses)]
    logarithmic = bool(finite.size and finite.min() > 0)
    head, width = out.text(training.title, "bold cyan"), out.console.width - 2
    last = f"final loss {number_text(final_of(training))}" + (", log scale" if logarithmic else "")
    out.console.print()
    out.console.print(Text.assemble(head, " " * max(1, width - head.cell_len - len(last)), last))
    steps = np.arange(1, losses.size + 1)
    for line in draw(steps, losses, width, CURVE_ROWS, dots=out.unicode, logarithmic=logarithmic):
        out.console.print(Text(line, "cyan", no_wrap=True))


def _acts(out: TerminalWriter, outcome: DemoOutcome) -> Iterator[tuple[Text, Text]]:
    for event in outcome.events:
        if event.kind in ACTS:
            yield out.text(f"step {event.step}"), out.text(event.message)


def _report(folder: Path | None) -> str:
    """Where the page can be opened."""
    if folder is None:
        return "stability/report.html, among the artifacts of the run"
    return str(_from_here(folder) / "report.html")


def _from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _left_on_disk(journal: Path | None) -> list[str]:
    """What the demo leaves in the directory beside the run, and how to remove it."""
    if journal is None:
        return []
    return [
        f"{_from_here(journal)}/ (checkpoints and captured batches; git ignores it)",
        f"rm -r {_from_here(journal)}",
    ]


def _show_way(out: TerminalWriter, outcome: DemoOutcome) -> None:
    """How to go on; commands and addresses are never broken over lines, so that they can be copied."""
    run_id = outcome.diagnosis.source
    ways = {
        "Report": [_report(outcome.reports)],
        "Full diagnosis": [f"mlflow-stability diagnose {run_id}"],
        "All steps, in Python": [f'mlflow_stability.load_run("{run_id}")'],
        "Run in MLflow": [each for each in (outcome.page.command, outcome.page.url) if each],
        "Left on disk": _left_on_disk(outcome.journal),
    }
    for title, lines in ((title, lines) for title, lines in ways.items() if lines):
        out.console.print(Padding(out.text(title, "bold"), (1, 0, 0, 0)))
        for line in lines:
            out.console.print(Text("  ").append(out.text(line)), soft_wrap=True)
