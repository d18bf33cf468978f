"""Whether the cause that is named is the true one: every failure of the zoo is trained, recorded and diagnosed.

    python tests/benchmarks/causes.py [--seeds 1] [--only NAME ...] [--modes watch rollback] [--workers 1] [--twins no]

Each training runs in a process of its own under `autolog()`, or `autolog(rollback=True)`, and is delivered to a store
as any other; what is diagnosed is the run in that store. Printed are the true cause, the one that is named, how certain
that is said to be, and whether it is right; then how many are right at the first place, how many are named wrong with
certainty, and whether a healthy twin was given a cause. A cause that was not named is not right.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from zoo.catalog import ZOO, failure_named

from mlflow_stability.analysis.diagnose import diagnose
from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.loop import Notes
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis

MODES: dict[str, dict[str, Any]] = {"watch": {}, "rollback": {"rollback": True}}
BATCH = frozenset({"bad_batch"})
IN_THE_LOSS = frozenset({"bad_batch", "loss_function"})
"""The loss function cannot stand what this batch holds: either is what an engineer has to look at."""
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
} | {each.name: frozenset(each.causes) for each in ZOO if each.causes}
"""What each failure is, from what was done to it; more than one word where one thing has two sides."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One training."""

    failure: str
    ill: bool
    seed: int
    mode: str


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        train(Trial(sys.argv[2], sys.argv[3] == "ill", int(sys.argv[4]), sys.argv[5]), Path(sys.argv[6]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="failures whose name contains one of these")
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--twins", default="yes", choices=("yes", "no"), help="whether healthy twins are trained, too")
    options = parser.parse_args()
    zoo = [each for each in ZOO if not options.only or any(part in each.name for part in options.only)]
    began = time.perf_counter()
    trials = trials_of(zoo, range(options.seeds), options.modes, twins=options.twins == "yes")
    with ThreadPoolExecutor(options.workers) as pool:
        found = dict(zip(trials, pool.map(diagnosed, trials), strict=True))
    print(table(found))
    print(verdict(found))
    print(f"\n{len(found)} trainings in {time.perf_counter() - began:.0f} s")


def trials_of(zoo: Sequence[Failure], seeds: Sequence[int], modes: Sequence[str], *, twins: bool) -> list[Trial]:
    """Every failure in every mode, and every twin."""
    wanted = [Trial(each.name, True, seed, mode) for mode in modes for each in zoo for seed in seeds]
    healthy = {each.twin: each for each in reversed(zoo)}.values() if twins else ()
    return wanted + [Trial(each.name, False, seed, mode) for mode in modes for each in healthy for seed in seeds]


def train(trial: Trial, folder: Path) -> None:
    """Train in this process, as a script of a user does; at its end everything is delivered."""
    import torch

    import mlflow_stability

    os.chdir(folder)
    torch.set_num_threads(1)
    settings = MODES[trial.mode]
    options = mlflow_stability.Options(journal_dir=folder / "journals", exit_wait=120.0)
    mlflow_stability.autolog(silent=True, options=options, **settings)
    failure_named(trial.failure).train(trial.seed, ill=trial.ill, notes=Notes())


def diagnosed(trial: Trial) -> Diagnosis:
    """The diagnosis of what was recorded."""
    with tempfile.TemporaryDirectory(prefix="causes-", ignore_cleanup_errors=True) as place:
        store = f"sqlite:///{place}/mlflow.db"
        health = "ill" if trial.ill else "well"
        subprocess.run(
            [sys.executable, __file__, "--train", trial.failure, health, str(trial.seed), trial.mode, place],
            env={**os.environ, "MLFLOW_TRACKING_URI": store},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,  # some end in an exception, and that is recorded
        )
        from mlflow import MlflowClient

        client = MlflowClient(store)
        experiments = [each.experiment_id for each in client.search_experiments()]
        (run,) = client.search_runs(experiments)
        found = diagnose(run.info.run_id, store)
        which = f"{trial.failure}, {health}, seed {trial.seed}, {trial.mode}"
        print(f"{which}: {_named(found)}", file=sys.stderr, flush=True)
        return found


def right(trial: Trial, diagnosis: Diagnosis) -> bool:
    return diagnosis.cause is not None and diagnosis.cause.name in TRUE_CAUSES[trial.failure]


def table(found: dict[Trial, Diagnosis]) -> str:
    lines = [f"{'failure':<25}{'mode':<10}{'seed':<6}{'true cause':<40}{'named cause':<40}{'right'}"]
    for trial, diagnosis in found.items():
        if trial.ill:
            true = " | ".join(sorted(TRUE_CAUSES[trial.failure]))
            said = "yes" if right(trial, diagnosis) else "-" if diagnosis.cause is None else "NO"
            lines.append(f"{trial.failure:<25}{trial.mode:<10}{trial.seed:<6}{true:<40}{_named(diagnosis):<40}{said}")
    return "\n".join(lines)


def verdict(found: dict[Trial, Diagnosis]) -> str:
    ill = {trial: diagnosis for trial, diagnosis in found.items() if trial.ill}
    lines = [""]
    for mode in dict.fromkeys(trial.mode for trial in ill):
        mine = {trial: diagnosis for trial, diagnosis in ill.items() if trial.mode == mode}
        hits = sum(right(*each) for each in mine.items())
        silent = sum(diagnosis.cause is None for diagnosis in mine.values())
        wrong = [trial for trial, diagnosis in mine.items() if diagnosis.cause and not right(trial, diagnosis)]
        sure = [trial.failure for trial in wrong if (cause := mine[trial].cause) is not None and cause.certain]
        lines.append(
            f"{mode}: {hits} of {len(mine)} right at the first place ({hits / len(mine):.0%}), {silent} not named, "
            f"{len(wrong)} wrong, of these certain: {len(sure)}{_listed(sure)}"
        )
    healthy = {trial: diagnosis for trial, diagnosis in found.items() if not trial.ill}
    blamed = [f"{trial.failure}: {_named(it)}" for trial, it in healthy.items() if it.cause is not None]
    lines.append(f"healthy twins: {len(healthy)}, given a cause: {len(blamed)}{_listed(blamed)}")
    return "\n".join(lines)


def _named(diagnosis: Diagnosis) -> str:
    cause = diagnosis.cause
    if cause is None:
        return "none"
    return f"{cause.name}{f' in {cause.place}' if cause.place else ''} ({cause.certainty})"


def _listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


if __name__ == "__main__":
    main()
