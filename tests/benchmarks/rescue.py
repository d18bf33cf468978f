"""Which failing trainings are saved: every failure of the zoo bare, with the guard, and with rollback.

    python tests/benchmarks/rescue.py [--quick] [--only NAME ...] [--seeds 3] [--workers 2] [--keep FOLDER]

The final loss is the mean over the weights of the last twenty steps, of the loss on test batches that are the same for
every seed; what is printed is its ratio to the healthy twin's, the worst of the seeds. A training is saved if that is
within five per cent. A failure shows in the numbers at the first step whose training loss is not finite or clearly
worse than the twin's at the same step; the first event is counted from there, so that one before is negative. Columns
that this version cannot do are left out. Each training runs in a process of its own. `--quick` is one seed.
With `--keep` each result is kept in a folder, and a table that was interrupted goes on from there; of the same code.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import math
import multiprocessing
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow_stability

sys.path.insert(0, str(Path(__file__).parents[1]))
from zoo.catalog import ZOO
from zoo.trial import Result, Trial, run

from mlflow_stability.demo.tasks.failure import Failure

SAVED_WITHIN = 1.05
CLEARLY_WORSE = 0.2
"""In units of the usual size of the twin's loss."""
IN_TIME = 3
"""Steps until the first event."""
MODES: dict[str, dict[str, Any]] = {"watched": {}, "guard": {"guard": True}, "rollback": {"rollback": True}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="failures whose name contains one of these")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for results, to go on with after an interruption")
    options = parser.parse_args()
    seeds = range(1 if options.quick else options.seeds)
    zoo = [each for each in ZOO if not options.only or any(part in each.name for part in options.only)]
    began = time.perf_counter()
    results = all_results(trials_of(zoo, seeds, modes_there_are()), options.workers, options.keep)
    rows = [row_of(failure, seeds, results) for failure in zoo]
    print(table(rows))
    print(verdict(rows, seeds, results))
    print(f"\n{len(results)} trainings in {time.perf_counter() - began:.0f} s")


def modes_there_are() -> list[str]:
    """What this version can do; without guard and rollback, it is only watched."""
    known = inspect.signature(mlflow_stability.autolog).parameters
    able = [name for name in ("guard", "rollback") if name in known]
    return able or ["watched"]


def arguments(mode: str) -> tuple[tuple[str, Any], ...] | None:
    return None if mode == "bare" else tuple(MODES[mode].items())


def trials_of(zoo: Sequence[Failure], seeds: Sequence[int], modes: Sequence[str]) -> list[Trial]:
    """Every failure in every mode, and every twin once: bare, and with all that there is."""
    wanted = [
        Trial(each.name, True, seed, arguments(mode)) for each in zoo for seed in seeds for mode in ("bare", *modes)
    ]
    for failure in {each.twin: each for each in reversed(zoo)}.values():
        wanted += [Trial(failure.name, False, seed, arguments(mode)) for seed in seeds for mode in ("bare", modes[-1])]
    return wanted


def all_results(trials: Sequence[Trial], workers: int, keep: Path | None = None) -> dict[Trial, Result]:
    """Run them side by side, each in a process that did nothing before but import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "psutil", "mlflow_stability.session.autolog"])
    with (
        tempfile.TemporaryDirectory(prefix="rescue-", ignore_cleanup_errors=True) as place,
        ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool,
    ):
        done = {trial: pickle.loads(file.read_bytes()) for trial in trials if (file := kept(trial, keep)).is_file()}
        missing = [(number, trial) for number, trial in enumerate(trials) if trial not in done]
        futures = {trial: pool.submit(run, trial, Path(place, str(number))) for number, trial in missing}
        for trial, future in futures.items():
            done[trial] = future.result()
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                kept(trial, keep).write_bytes(pickle.dumps(done[trial]))
            if len(done) % 10 == 0:
                print(f"{len(done)} of {len(trials)} trainings", file=sys.stderr, flush=True)
    return done


def kept(trial: Trial, keep: Path | None) -> Path:
    """Where the result of a training is kept."""
    return Path(keep or "/nowhere", f"{hashlib.sha256(repr(trial).encode()).hexdigest()[:16]}.pickle")


@dataclass(frozen=True, slots=True)
class Row:
    """One failure, over all seeds."""

    failure: Failure
    ratios: dict[str, list[float]]
    """By mode: the final loss in units of the twin's; infinite where there is none."""
    shows: list[int | None]
    """At which step the failure shows in bare training."""
    delays: list[int | None]
    """How many steps later the first event came, with all that there is."""
    rollbacks: list[int]
    steps_lost: list[float]
    skipped: list[int]
    said: list[str]
    """What was said last, or the exception that ended it."""

    @property
    def is_late(self) -> bool:
        """Whether it showed in the numbers of some seed and nothing was said within three steps."""
        pairs = zip(self.shows, self.delays, strict=True)
        return any(shows is not None and (delay is None or delay > IN_TIME) for shows, delay in pairs)

    def saved(self, mode: str) -> int:
        return sum(ratio <= SAVED_WITHIN for ratio in self.ratios.get(mode, []))


def row_of(failure: Failure, seeds: Sequence[int], results: dict[Trial, Result]) -> Row:
    modes = ["bare", *modes_there_are()]
    twin = next(each.failure for each in results if not each.ill and failure_of(each).twin == failure.twin)
    healthy = {seed: results[Trial(twin, False, seed)] for seed in seeds}
    by_mode = {mode: [results[Trial(failure.name, True, seed, arguments(mode))] for seed in seeds] for mode in modes}
    shows = [shows_at(failure, each, healthy[seed]) for seed, each in zip(seeds, by_mode["bare"], strict=True)]
    last = by_mode[modes[-1]]
    return Row(
        failure,
        {
            mode: [ratio(each, healthy[seed]) for seed, each in zip(seeds, tried, strict=True)]
            for mode, tried in by_mode.items()
        },
        shows,
        [delay(failure, each, step) for each, step in zip(last, shows, strict=True)],
        [len(of_kind(each, "rollback")) for each in last],
        [sum(event.metrics.get("steps_lost", 0.0) for event in of_kind(each, "rollback")) for each in last],
        [len(of_kind(each, "step_skipped")) for each in last],
        [each.error or (each.events[-1].kind if each.events else "") for each in last],
    )


def failure_of(trial: Trial) -> Failure:
    return next(each for each in ZOO if each.name == trial.failure)


def of_kind(result: Result, kind: str) -> list[Any]:
    return [event for event in result.events if event.kind == kind]


def ratio(result: Result, healthy: Result) -> float:
    value = result.notes.final_loss / healthy.notes.final_loss
    return value if math.isfinite(value) else math.inf


def shows_at(failure: Failure, result: Result, healthy: Result) -> int | None:
    """The first step from which on anybody would see it in the loss."""
    usual = statistics.median(abs(loss) for loss in healthy.notes.losses)
    pairs = zip(result.notes.losses, healthy.notes.losses, strict=False)
    for step, (ill, well) in enumerate(pairs, start=1):
        if step >= failure.onset and not ill - well <= CLEARLY_WORSE * usual:
            return step
    return None


def delay(failure: Failure, result: Result, shows: int | None) -> int | None:
    """Counted from where it shows; an event before anything was wrong is no answer to it.

    What is wrong at the onset may have been done by the step before, as by a learning rate that leapt.
    """
    first = next((event.step for event in result.events if event.step >= failure.onset - 1), None)
    return None if first is None or shows is None else first - shows


def table(rows: Sequence[Row]) -> str:
    modes = list(rows[0].ratios)
    head = f"{'failure':<25}{'onset':>6}{'shows':>7}" + "".join(f"{mode:>10}" for mode in modes)
    lines = [head + f"{'1st event':>11}{'rollbacks':>11}{'lost':>6}{'skipped':>9}  last word"]
    for row in rows:
        cells = "".join(f"{shown(max(row.ratios[mode])):>10}" for mode in modes)
        lines.append(
            f"{row.failure.name:<25}{row.failure.onset:>6}{one(row.shows, max):>7}{cells}{one(row.delays, max):>11}"
            f"{one(row.rollbacks, max):>11}{one(row.steps_lost, max):>6}{one(row.skipped, max):>9}"
            f"  {row.said[0][:40]}{'' if row.failure.recoverable else '  (cannot be saved)'}"
        )
    return "\n".join(lines)


def shown(value: float) -> str:
    return "lost" if math.isinf(value) else f"{value:.3g}" if value >= 100 else f"{value:.3f}"


def one(values: Sequence[float | None], pick: Callable[[Sequence[float]], float]) -> str:
    there = [value for value in values if value is not None]
    return f"{pick(there):.0f}" if there else "-"


def verdict(rows: Sequence[Row], seeds: Sequence[int], results: dict[Trial, Result]) -> str:
    can_be = [row for row in rows if row.failure.recoverable]
    lines = [""]
    for mode in rows[0].ratios:
        saved, tried = sum(row.saved(mode) for row in can_be), len(can_be) * len(seeds)
        lines.append(f"{mode}: {saved} of {tried} recoverable failures end within 5 % of the twin")
    lines.append(healthy_twins(results))
    late = [row.failure.name for row in rows if row.is_late]
    lines.append(f"first event later than 3 steps after the failure shows, or never: {len(late)}{listed(late)}")
    best = list(rows[0].ratios)[-1]
    for row in rows:
        if not row.failure.recoverable:
            lines.append(f"cannot be saved: {row.failure.name}. {row.failure.why} Last word: {row.said[0] or 'none'}.")
        elif row.saved(best) < len(seeds):
            lines.append(f"not saved by {best}: {row.failure.name}, {len(seeds) - row.saved(best)} of {len(seeds)}.")
    return "\n".join(lines)


def healthy_twins(results: dict[Trial, Result]) -> str:
    """Nothing may happen to them, and nothing should be said of them."""
    twins = {trial: result for trial, result in results.items() if not trial.ill and trial.autolog is not None}
    changed = sum(
        result.notes.losses != results[Trial(trial.failure, False, trial.seed)].notes.losses
        for trial, result in twins.items()
    )
    acts = sum(len(of_kind(each, "rollback")) + len(of_kind(each, "step_skipped")) for each in twins.values())
    said = [
        f"{failure_of(trial).twin}: {event.kind} at {event.step}" for trial, it in twins.items() for event in it.events
    ]
    return (
        f"healthy twins: {len(twins)}, rollbacks and skipped steps: {acts}, other losses than bare: {changed}, "
        f"events: {len(said)}{listed(said)}"
    )


def listed(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


if __name__ == "__main__":
    main()
