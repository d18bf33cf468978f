"""Shows how far trainings are that run side by side.

In: the trainings. Out: their losses and runs. Guarantees: what a training says besides is shown at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from mlflow_stability.demo import processes
from mlflow_stability.demo.processes import Training
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.terminal_kit import number_text


@dataclass(frozen=True, slots=True)
class Trainings:
    """Those of the demo."""

    twin: Training = field(default_factory=lambda: Training("healthy reference"))
    bare: Training = field(default_factory=lambda: Training("bare", ("--ill",)))
    rescued: Training = field(default_factory=lambda: Training("autolog(rollback=True)", ("--ill", "--autopilot")))

    @property
    def all(self) -> tuple[Training, Training, Training]:
        """In the order in which they are shown."""
        return self.twin, self.bare, self.rescued


def train(steps: int, notes: Console) -> Trainings:
    """Run those of the demo to their ends, delivery included."""
    trainings = Trainings()
    for each in trainings.all:
        each.options = ("demo", "--steps", str(steps), *each.options)
    train_shown(trainings.all, notes, steps)
    return trainings


def train_shown(trainings: Sequence[Training], notes: Console, steps: int | None = None) -> None:
    """Run trainings to their ends; on a terminal, with a bar for each."""
    with _bars(steps, trainings, notes) as (progress, tasks):

        def stepped(number: int) -> None:
            losses = trainings[number].losses
            progress.update(tasks[number], completed=len(losses), loss=f"loss {number_text(losses[-1])}")

        def said(number: int, line: str) -> None:
            notes.print(Text(f"{trainings[number].title}: {plain(line)}"), soft_wrap=True)

        processes.train(trainings, stepped, said)


@contextlib.contextmanager
def _bars(steps: int | None, trainings: Sequence[Training], notes: Console) -> Iterator[tuple[Progress, list[TaskID]]]:
    """How far each is, for a person at a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("step {task.completed}  {task.fields[loss]}")
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        yield progress, [progress.add_task(each.title, total=steps, loss="") for each in trainings]
