"""`mlflow_stability.simulate`: train a failure beside its healthy twin, record both, and compare them.

Both trainings have the same weights and batches up to the first step at which something goes wrong; each is a process
of its own, recorded as any other training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlflow_stability.analysis.compare import compare
from mlflow_stability.analysis.diagnose import diagnose
from mlflow_stability.demo.catalog import known_simulation
from mlflow_stability.demo.processes import Training, train
from mlflow_stability.errors import TrackingError
from mlflow_stability.vocabulary.argument import check_arguments
from mlflow_stability.vocabulary.result import Comparison, Diagnosis


@dataclass(frozen=True, slots=True)
class Simulation:
    """A failure that was trained beside its healthy twin."""

    name: str
    """As `mlflow-stability simulate --list` prints it."""
    what: str
    """What went wrong, in one sentence."""
    causes: tuple[str, ...]
    """The causes that are right; more than one where one thing has two sides."""
    healthy_run_id: str
    """The run of the healthy twin."""
    run_id: str
    """The run of the failure."""
    losses: tuple[float, ...]
    """The loss of every step of the failure."""
    healthy_losses: tuple[float, ...]
    """The loss of every step of the healthy twin."""
    diagnosis: Diagnosis
    """Of the failure."""
    comparison: Comparison
    """Of both."""

    @property
    def cause(self) -> str:
        """The cause that the diagnosis names; empty: none."""
        return self.diagnosis.cause.name if self.diagnosis.cause is not None else ""

    @property
    def found(self) -> bool:
        """Whether the diagnosis names a right cause."""
        return self.cause in self.causes

    def __repr__(self) -> str:
        return f"<Simulation {self.name}: {self.what} Diagnosis: {self.diagnosis.verdict}>"


@check_arguments
def simulate(name: str, *, seed: int = 0, rollback: bool = False, steps: int | None = None) -> Simulation:
    """Train a failure beside its healthy twin, record both, and compare them.

    The two trainings have the same weights and batches until something goes wrong. They are recorded into
    ``MLFLOW_TRACKING_URI``, else as MLflow does, and take up to a minute on a CPU.

    Args:
        name: ``bad-batch``, ``learning-rate-too-high``, ...: `mlflow-stability simulate --list` prints all.
        seed: Of weights and batches.
        rollback: Record the failure with `autolog(rollback=True)`.
        steps: How many steps to train, for a part of the training, or for a longer demo.

    Returns:
        Both runs, with the diagnosis of the failure and the comparison.

    Raises:
        SettingsError: There is no such failure.

    Example:

        >>> simulate("bad-batches")
        Traceback (most recent call last):
        mlflow_stability.errors.SettingsError: There is no simulation 'bad-batches'. Did you mean bad-batch?
    """
    return run_simulation(known_simulation(name), seed, rollback, steps, train)


def run_simulation(
    name: str, seed: int, rollback: bool, steps: int | None, run: Callable[[Sequence[Training]], None]
) -> Simulation:
    """Return the simulation; `run` runs its two trainings."""
    options = (name, "--seed", str(seed), *(() if steps is None else ("--steps", str(steps))))
    healthy = Training("healthy twin", (*options, "--record", "--title", f"{name}: healthy twin"))
    recorded = "--autopilot" if rollback else "--record"
    failure = Training("failure", (*options, "--ill", recorded, "--title", f"{name}: failure"))
    run((healthy, failure))
    if healthy.run_id is None or failure.run_id is None:
        raise TrackingError(
            "Training finished, but the tracking store has not accepted the runs yet. No data is lost: run "
            "`mlflow-stability doctor` to see why, and `mlflow-stability sync` when the store answers."
        )
    return Simulation(
        name,
        failure.what,
        failure.causes,
        healthy.run_id,
        failure.run_id,
        tuple(failure.losses),
        tuple(healthy.losses),
        diagnose(failure.run_id),
        compare([healthy.run_id, failure.run_id]),
    )
