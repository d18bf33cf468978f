"""`simulate`: train a failure beside its healthy twin, record both, and show the diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import click
from rich.text import Text

from mlflow_stability.cli.commands.demo import show_curve, train_with_progress
from mlflow_stability.cli.output import notes_console, present
from mlflow_stability.demo.catalog import SIMULATIONS, known_simulation
from mlflow_stability.demo.processes import Training
from mlflow_stability.demo.simulate import Simulation, run_simulation
from mlflow_stability.errors import TORCH_IS_MISSING, StabilityError
from mlflow_stability.reports.run_terminal import show_gist
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.text import number_text


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
    notes = notes_console()

    def run(trainings: Sequence[Training]) -> None:
        train_with_progress(trainings, notes, steps)

    simulation = run_simulation(known_simulation(name), seed, rollback, steps, run)
    present(lambda out: _show(out, simulation, answer=not no_answer))


def _show_list(out: TerminalWriter) -> None:
    rows = ((out.text(name, "bold"), out.text(sentence)) for name, (_, sentence) in SIMULATIONS.items())
    out.section("Simulations", rows, space=False)
    out.paragraph("Run one", f"mlflow-stability simulate {next(iter(SIMULATIONS))}", names=True)


def _show(out: TerminalWriter, simulation: Simulation, *, answer: bool) -> None:
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
