"""`simulate`: trains a failure beside its healthy twin, records both, and shows what the diagnosis makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import click
import numpy as np
from rich.text import Text

from mlflow_stability.cli.commands.demo_trainings import train_shown
from mlflow_stability.cli.kit.output import present
from mlflow_stability.cli.kit.terminal import notes_console
from mlflow_stability.demo.failures import SIMULATIONS, known_simulation
from mlflow_stability.demo.processes import Training
from mlflow_stability.demo.simulate import Simulation, simulations, trained
from mlflow_stability.errors import TORCH_IS_MISSING, StabilityError
from mlflow_stability.reports.run.terminal import show_gist
from mlflow_stability.reports.terminal_kit import TerminalWriter, draw, number_text

CURVE_ROWS = 4


@click.command("simulate")
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="List all simulations.")
@click.option("--seed", default=0, show_default=True, help="Seed of weights and batches.")
@click.option("--steps", default=None, type=click.IntRange(1, 100_000), help="Number of steps.  [default: its own]")
@click.option("--rollback", is_flag=True, help="Record the failure with autolog(rollback=True).")
@click.option("--no-answer", is_flag=True, help="Do not say what went wrong: to practise.")
def command(name: str | None, listed: bool, seed: int, steps: int | None, rollback: bool, no_answer: bool) -> None:
    """Train a failure beside its healthy twin, and diagnose it.

    Both are recorded as runs, in MLFLOW_TRACKING_URI, else in mlflow.db in this directory. They have the same weights
    and batches until something goes wrong. Without NAME, all simulations are listed.
    """
    if listed or name is None:
        present(_show_list)
        return
    if find_spec("torch") is None:
        raise StabilityError(f"simulate {TORCH_IS_MISSING}")
    known, notes = known_simulation(name), notes_console()

    def run(trainings: Sequence[Training]) -> None:
        train_shown(trainings, notes, steps)

    done = trained(known, seed, rollback, steps, run)
    present(lambda out: _show(out, done, answer=not no_answer))


def _show_list(out: TerminalWriter) -> None:
    rows = ((out.text(name, "bold"), out.text(said)) for name, said in simulations().items())
    out.section("Simulations", rows, space=False)
    out.paragraph("Run one", f"mlflow-stability simulate {next(iter(SIMULATIONS))}", names=True)


def _show(out: TerminalWriter, done: Simulation, *, answer: bool) -> None:
    out.rule("mlflow-stability simulate" + (f" {done.name}" if answer else ""))
    if answer:
        out.paragraph("What goes wrong", done.what)
    for title, losses in (("healthy twin", done.healthy_losses), ("failure", done.losses)):
        _show_curve(out, title, losses)
    if answer:
        show_gist(out, done.diagnosis, "Diagnosis of the failure (mlflow-stability diagnose)")
        said = "yes" if done.found else "no"
        out.section(
            "Right cause", [(out.text(said), out.text(f"{done.cause or 'none'} (right: {', '.join(done.causes)})"))]
        )
        out.paragraph(
            "Comparison", done.comparison.first_difference.sentence if done.comparison.first_difference else ""
        )
    ways = (
        f"mlflow-stability diagnose {done.run_id}",
        f"mlflow-stability checklist --run {done.run_id}",
        f"mlflow-stability compare {done.healthy_run_id[:8]} {done.run_id[:8]}",
    )
    out.console.print()
    out.console.print(out.text("Look further" if answer else "What went wrong, and why?", "bold"))
    for each in ways:
        out.console.print(Text("  ").append(out.text(each)), soft_wrap=True)


def _show_curve(out: TerminalWriter, title: str, losses: Sequence[float]) -> None:
    values = np.array(losses)
    finite = values[np.isfinite(values)]
    logarithmic = bool(finite.size and finite.min() > 0)
    head, width = out.text(title, "bold cyan"), out.console.width - 2
    last = f"last loss {number_text(losses[-1])}" + (", log scale" if logarithmic else "")
    out.console.print()
    out.console.print(Text.assemble(head, " " * max(1, width - head.cell_len - len(last)), last))
    for line in draw(
        np.arange(1, values.size + 1), values, width, CURVE_ROWS, dots=out.unicode, logarithmic=logarithmic
    ):
        out.console.print(Text(line, "cyan", no_wrap=True))
