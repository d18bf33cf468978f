"""The cases of each golden file, and the shape of each as the package of today makes it.

Nothing is trained: recorded runs come from `mlruns_fixtures`, logs are drawn by numpy with fixed seeds and written with
six digits, and models are checked without a step.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from golden import shapes
from golden.printed_logs import write_logs
from golden.shapes import Shape
from golden.sweep import write_sweep
from zoo.curves.drawn import DrawnRun
from zoo.curves.healthy import PLAIN, TRAPS, healthy_run
from zoo.curves.ill import FORMS, NON_FINITE, ill_run

from mlflow_stability import check, compare
from mlflow_stability.analysis.diagnose import history_of

EXPERIMENT = Path(__file__).parents[2] / "mlruns_fixtures" / "0"
LOGGED = ("loss", "val_loss", "grad_norm", "learning_rate")
"""What a script logs of such a training, by the names in the record."""
ILL_SEEDS = (0, 1, 2)
COMPARISONS = {
    "all runs": ((), None),
    "healthy and spike": (("healthy", "loss_spike"), None),
    "healthy and divergence": (("healthy", "divergence"), None),
    "against the healthy run": (("healthy", "loss_spike", "divergence", "plateau_at_chance", "kill"), "healthy"),
}
"""The runs of each comparison, none for all, and its baseline."""


def run_names() -> list[str]:
    """Recorded runs of the fixtures."""
    return sorted(file.parent.name for file in EXPERIMENT.glob("*/meta.yaml"))


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Change the working directory, so that sources are names and not paths of a machine."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def recorded_runs() -> dict[str, Shape]:
    """Every run of an earlier version as it was judged while it trained."""
    with working_in(EXPERIMENT):
        return diagnosed_sources(run_names())


def runs_with_facts() -> dict[str, Shape]:
    """Every run whose findings were recorded with facts, as it was judged while it trained."""
    with working_in(EXPERIMENT.with_name("1")):
        return diagnosed_sources(sorted(file.parent.name for file in Path().glob("*/meta.yaml")))


def runs_judged_again() -> dict[str, Shape]:
    """Every recorded run, its values judged by today's detectors."""
    with working_in(EXPERIMENT):
        return {name: shapes.diagnosed_again(name) for name in run_names()}


def logs_of_runs() -> dict[str, Shape]:
    """Every recorded run as the CSV file that its script might have written."""
    with tempfile.TemporaryDirectory() as folder, working_in(Path(folder)):
        logs = [Path(f"{name}.csv") for name in run_names()]
        for log in logs:
            write_log(EXPERIMENT / log.stem, log)
        return diagnosed_sources([log.name for log in logs])


def diagnosed_sources(sources: list[str]) -> dict[str, Shape]:
    """Diagnoses of runs and logs in the working directory."""
    return {name: shape for source in sources for name, shape in shapes.diagnosed_runs(source).items()}


def write_log(run: Path, log: Path) -> None:
    """Write loss, validation loss, gradient norm and learning rate of each step; steps taken again come twice."""
    rows: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
    for metric in history_of(run).metrics:
        if metric.name in LOGGED:
            series = metric.series
            for attempt, step, value in zip(series.attempts, series.steps, series.values, strict=True):
                rows[int(attempt), int(step)].setdefault(metric.name, f"{value:.6g}")
    names = [name for name in LOGGED if any(name in row for row in rows.values())]
    with log.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["step", *names])
        writer.writeheader()
        writer.writerows({"step": step, **rows[attempt, step]} for attempt, step in sorted(rows))


def printed_logs() -> dict[str, Shape]:
    """Printed logs that tell of an event in words, and logs that cannot be judged."""
    with tempfile.TemporaryDirectory() as folder, working_in(Path(folder)):
        return diagnosed_sources(write_logs(Path()))


def ill_logs() -> dict[str, Shape]:
    """Drawn logs in which something goes wrong: each form with several seeds."""
    forms = (*FORMS, *NON_FINITE, "warm-up overshoot")
    return {f"{form}, seed {seed}": diagnosed(ill_run(form, seed)) for form in forms for seed in ILL_SEEDS}


def healthy_logs() -> dict[str, Shape]:
    """Drawn logs in which nothing goes wrong: a plain one, and one of each form that is easily taken for trouble."""
    return {f"{trap}, seed 0": diagnosed(healthy_run(0, trap)) for trap in (PLAIN, *TRAPS)}


def diagnosed(run: DrawnRun) -> Shape:
    """The diagnosis of a drawn log; rounded, so that the last digit of `exp` on another processor does not matter."""
    metrics = tuple(replace(metric, values=rounded(metric.values)) for metric in run.metrics)
    return shapes.diagnosed_history(replace(run, metrics=metrics).history())


def rounded(values: np.ndarray) -> np.ndarray:
    """The values as a log prints them, with six significant digits."""
    return np.array([float(f"{value:.6g}") for value in values])


def model_checks() -> dict[str, Shape]:
    """Models with one thing wrong each, checked without training."""
    from golden.model_cases import CASES

    return {name: shapes.model_check_shape(check(**arguments())) for name, arguments in CASES.items()}


def comparisons() -> dict[str, Shape]:
    """Comparisons of recorded runs: all, pairs, and several against a baseline; and of a sweep of learning rates."""
    with working_in(EXPERIMENT):
        made = {
            name: shapes.comparison_shape(compare(runs or run_names(), baseline=baseline, remember=False))
            for name, (runs, baseline) in COMPARISONS.items()
        }
    with tempfile.TemporaryDirectory() as folder, working_in(Path(folder)):
        made["sweep"] = shapes.comparison_shape(compare(write_sweep(Path("0")), remember=False))
    return made


GROUPS: dict[str, Callable[[], dict[str, Shape]]] = {
    "recorded_runs": recorded_runs,
    "runs_with_facts": runs_with_facts,
    "runs_judged_again": runs_judged_again,
    "logs_of_runs": logs_of_runs,
    "printed_logs": printed_logs,
    "ill_logs": ill_logs,
    "healthy_logs": healthy_logs,
    "model_checks": model_checks,
    "comparisons": comparisons,
    "checklists": shapes.checklist_shapes,
}
"""Each golden file by its name without the ending."""
