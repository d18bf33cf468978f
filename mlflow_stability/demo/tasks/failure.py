"""What a failure is: an ordinary training, what goes wrong in it, and whether anything can help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlflow_stability.demo.tasks.loop import FailurePoints, Notes, loop
from mlflow_stability.demo.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that goes wrong; the same training without it is its healthy twin."""

    name: str
    what: str
    """What goes wrong, in one sentence."""
    task: Callable[[int], Task]
    """Makes the training from a seed. Failures with the same one have the same twin."""
    trouble: FailurePoints
    onset: int
    """The first step whose batch, loss, gradients or weights are not those of the twin: all steps before are the same,
    bit for bit.
    """
    recoverable: bool
    """Whether someone who watches could save it without changing the script or its data."""
    why: str
    """What saves it, or why nothing can."""
    causes: tuple[str, ...] = ()
    """Names of the causes that a diagnosis may give; more than one where one thing has two sides."""

    @property
    def twin(self) -> str:
        """The name that all failures with this twin share."""
        return self.task.__name__

    def train(self, seed: int, *, ill: bool, notes: Notes, steps: int | None = None) -> None:
        """Train it, or its twin; what happens is written into the notes while it happens. Fewer steps end it early."""
        self.train_task(self.task(seed), seed, ill=ill, notes=notes, steps=steps)

    def train_task(self, task: Task, seed: int, *, ill: bool, notes: Notes, steps: int | None = None) -> None:
        """The same for a task that was made before."""
        loop(replace(task, steps=steps or task.steps), self.trouble if ill else FailurePoints(), seed, notes)
