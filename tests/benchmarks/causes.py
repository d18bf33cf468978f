"""Whether the cause that a diagnosis names is the true one, for failures of the zoo and for simulations."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.table import Table, table_of
from mlflow import MlflowClient
from zoo.catalog import ZOO, failure_named

from mlflow_stability import Diagnosis, diagnose, simulate
from mlflow_stability.demo.catalog import SIMULATIONS
from mlflow_stability.demo.training import failure_of
from mlflow_stability.demo.training_loop import Failure, Notes

MODES: dict[str, dict[str, Any]] = {"watch": {}, "rollback": {"rollback": True}}
BATCH = frozenset({"bad_batch"})
IN_THE_LOSS = frozenset({"bad_batch", "loss_function"})
"""The loss function fails on what this batch holds: an engineer has to inspect either."""
TRUE_CAUSES: dict[str, frozenset[str]] = {
    "corrupted targets": BATCH,
    "NaN inputs": BATCH,
    "inputs x1e6": BATCH,
    "aggressive loss scaler": frozenset({"fp16_scale"}),
    "NaN in optimizer state": frozenset({"optimizer_state", "damaged_weights"}),
    "zero-variance norm": frozenset({"bad_batch", "gradient_non_finite"}),
    "exploding RNN": BATCH,
    "heavy-tailed reward": BATCH,
    "repeated data": frozenset({"repeated_data"}),
    "log(0) loss": IN_THE_LOSS,
    "division by zero": IN_THE_LOSS,
    "GPT: lr 1.0 at 200": frozenset({"learning_rate_jump"}),
} | {failure.name: frozenset(failure.causes) for failure in ZOO if failure.causes}
"""What each failure is, from what was done to it; several where one thing has two sides."""
TRAIN = "import sys; from benchmarks.causes import train; train(*sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Trial:
    """One training."""

    failure: str
    ill: bool
    seed: int
    mode: str


def causes(
    seeds: int = 1,
    only: tuple[str, ...] = (),
    modes: tuple[str, ...] = tuple(MODES),
    workers: int = 1,
    twins: bool = True,
) -> Iterator[Table]:
    """Train every failure in a process of its own, deliver it to a store, and diagnose that run.

    A cause that was not named is not right. Healthy twins should be given no cause.
    """
    zoo = [failure for failure in ZOO if not only or any(part in failure.name for part in only)]
    trials = trials_of(zoo, range(seeds), modes, twins=twins)
    with ThreadPoolExecutor(workers) as pool:
        diagnoses = dict(zip(trials, pool.map(diagnosed, trials), strict=True))
    rows = [
        {
            "failure": trial.failure,
            "mode": trial.mode,
            "seed": trial.seed,
            "true cause": " | ".join(sorted(TRUE_CAUSES[trial.failure])),
            "named cause": _named(diagnosis),
            "right": "yes" if is_right(trial, diagnosis) else "-" if diagnosis.cause is None else "NO",
        }
        for trial, diagnosis in diagnoses.items()
        if trial.ill
    ]
    yield table_of("Named causes", rows)
    yield table_of("Summary", [summary_of(mode, diagnoses) for mode in modes], [twins_line(diagnoses)])


def trials_of(zoo: Sequence[Failure], seeds: Sequence[int], modes: Sequence[str], *, twins: bool) -> list[Trial]:
    """Every failure in every mode, and every twin."""
    wanted = [Trial(failure.name, True, seed, mode) for mode in modes for failure in zoo for seed in seeds]
    healthy = {failure.twin: failure for failure in reversed(zoo)}.values() if twins else ()
    return wanted + [Trial(failure.name, False, seed, mode) for mode in modes for failure in healthy for seed in seeds]


def train(failure: str, health: str, seed: str, mode: str) -> None:
    """Train in this process, as a script of a user does; at its end everything is delivered."""
    import torch

    import mlflow_stability

    torch.set_num_threads(1)
    options = mlflow_stability.Options(journal_dir=Path.cwd() / "journals", exit_wait=120.0)
    mlflow_stability.autolog(silent=True, options=options, **MODES[mode])
    failure_named(failure).train(int(seed), ill=health == "ill", notes=Notes())


def diagnosed(trial: Trial) -> Diagnosis:
    """Train and return the diagnosis of the run in its store."""
    with tempfile.TemporaryDirectory(prefix="causes-", ignore_cleanup_errors=True) as folder:
        store = f"sqlite:///{folder}/mlflow.db"
        health = "ill" if trial.ill else "well"
        subprocess.run(
            [sys.executable, "-c", TRAIN, trial.failure, health, str(trial.seed), trial.mode],
            cwd=folder,
            env={**os.environ, "MLFLOW_TRACKING_URI": store},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,  # some end in an exception, and that is recorded
        )
        client = MlflowClient(store)
        (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        diagnosis = diagnose(run.info.run_id, tracking_uri=store)
    print(f"{trial.failure}, {health}, seed {trial.seed}, {trial.mode}: {_named(diagnosis)}", file=sys.stderr)
    return diagnosis


def is_right(trial: Trial, diagnosis: Diagnosis) -> bool:
    return diagnosis.cause is not None and diagnosis.cause.name in TRUE_CAUSES[trial.failure]


def summary_of(mode: str, diagnoses: dict[Trial, Diagnosis]) -> dict[str, str | int]:
    ill = {trial: diagnosis for trial, diagnosis in diagnoses.items() if trial.ill and trial.mode == mode}
    wrong = [(trial, it.cause) for trial, it in ill.items() if it.cause is not None and not is_right(trial, it)]
    certain = [trial.failure for trial, cause in wrong if cause.certain]
    return {
        "mode": mode,
        "trainings": len(ill),
        "right": sum(is_right(*pair) for pair in ill.items()),
        "not named": sum(diagnosis.cause is None for diagnosis in ill.values()),
        "wrong": len(wrong),
        "wrong and certain": ", ".join(certain) or "none",
    }


def twins_line(diagnoses: dict[Trial, Diagnosis]) -> str:
    healthy = {trial: diagnosis for trial, diagnosis in diagnoses.items() if not trial.ill}
    blamed = [f"{trial.failure}: {_named(it)}" for trial, it in healthy.items() if it.cause is not None]
    return f"{len(healthy)} healthy twins, given a cause: {', '.join(blamed) or 'none'}"


def simulations(only: tuple[str, ...] = (), seed: int = 0) -> Iterator[Table]:
    """Train every simulation of `mlflow-stability simulate` beside its healthy twin and diagnose both."""
    rows = []
    for name in only or SIMULATIONS:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{tempfile.mkdtemp(dir=Path.cwd())}/mlflow.db"
        done = simulate(name, seed=seed)
        twin = diagnose(done.healthy_run_id)
        rows.append(
            {
                "simulation": name,
                "result": "right" if done.found else "WRONG",
                "named cause": str(done.cause),
                "right causes": ", ".join(failure_of(name, None).causes),
                "findings": _kinds(done.diagnosis),
                "twin": f"{twin.outcome} ({_kinds(twin) or 'no finding'})",
            }
        )
    yield table_of("", rows, [f"{sum(row['result'] == 'right' for row in rows)} of {len(rows)} named a right cause"])


def _kinds(diagnosis: Diagnosis) -> str:
    return ", ".join(dict.fromkeys(finding.kind for finding in diagnosis.findings))


def _named(diagnosis: Diagnosis) -> str:
    cause = diagnosis.cause
    if cause is None:
        return "none"
    return f"{cause.name}{f' in {cause.place}' if cause.place else ''} ({cause.certainty})"
