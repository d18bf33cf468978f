"""Failing trainings that are saved: every failure of the zoo bare, with the guard, and with rollback."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import pickle
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.table import Cell, Table, table_of
from zoo.catalog import CANNOT_BE_SAVED, ZOO
from zoo.trial import Result, Trial, run

from mlflow_stability.demo.training_loop import Failure

MAX_RATIO_SAVED = 1.05
CLEARLY_WORSE = 0.2
"""In units of the median loss of the healthy twin."""
MAX_DELAY_STEPS = 3
MODES: dict[str, dict[str, Any] | None] = {"bare": None, "guard": {"guard": True}, "rollback": {"rollback": True}}


def rescue(seeds: int = 3, only: tuple[str, ...] = (), workers: int = 2, keep: Path | None = None) -> Iterator[Table]:
    """Train each failure in every mode, and its healthy twin.

    The final loss is the mean over the weights of the last twenty steps, of the loss on test batches that are the same
    for every seed; `bare`, `guard` and `rollback` are its ratio to the twin's, the worst of the seeds. A training is
    saved if that is within five per cent. `shows` is the first step whose loss is not finite or clearly worse than the
    twin's; `first event` counts from there. With `keep`, results stay in a folder, and an interrupted table goes on.
    """
    zoo = [failure for failure in ZOO if not only or any(part in failure.name for part in only)]
    results = all_results(trials_of(zoo, range(seeds)), workers, keep)
    rows, late, lost = [], [], []
    saved = dict.fromkeys(MODES, 0)
    for failure in zoo:
        by_mode = {mode: [results[trial_of(failure.name, True, seed, mode)] for seed in range(seeds)] for mode in MODES}
        healthy = [results[trial_of(twin_of(failure, zoo).name, False, seed, "bare")] for seed in range(seeds)]
        ratios = {mode: list(map(ratio, tried, healthy)) for mode, tried in by_mode.items()}
        steps = [shows_at(failure, *pair) for pair in zip(by_mode["bare"], healthy, strict=True)]
        last = by_mode["rollback"]
        delays = [delay(failure, result, step) for result, step in zip(last, steps, strict=True)]
        if any(
            step is not None and (after is None or after > MAX_DELAY_STEPS)
            for step, after in zip(steps, delays, strict=True)
        ):
            late.append(failure.name)
        if failure.name not in CANNOT_BE_SAVED:
            for mode, values in ratios.items():
                saved[mode] += sum(value <= MAX_RATIO_SAVED for value in values)
            if max(ratios["rollback"]) > MAX_RATIO_SAVED:
                lost.append(failure.name)
        rows.append(row_of(failure, ratios, steps, delays, last))
    recoverable = seeds * sum(failure.name not in CANNOT_BE_SAVED for failure in zoo)
    yield table_of("Final loss in units of the healthy twin's", rows)
    yield table_of(
        "Summary",
        [
            *({"what": f"saved, {mode}", "result": f"{count} of {recoverable}"} for mode, count in saved.items()),
            {"what": "not saved with rollback", "result": ", ".join(lost) or "none"},
            {"what": f"first event over {MAX_DELAY_STEPS} steps late, or none", "result": ", ".join(late) or "none"},
            *healthy_twins(results),
        ],
    )


def row_of(
    failure: Failure,
    ratios: dict[str, list[float]],
    steps: Sequence[int | None],
    delays: Sequence[int | None],
    last: Sequence[Result],
) -> dict[str, Cell]:
    lost = [sum(event.metrics.get("steps_lost", 0.0) for event in of_kind(result, "rollback")) for result in last]
    reason = CANNOT_BE_SAVED.get(failure.name, "")
    final = last[0].error or (last[0].events[-1].kind if last[0].events else "")
    return {
        "failure": failure.name,
        "onset": failure.onset,
        "shows": largest(steps),
        **{mode: "lost" if math.isinf(max(values)) else f"{max(values):.3f}" for mode, values in ratios.items()},
        "first event": largest(delays),
        "rollbacks": max(len(of_kind(result, "rollback")) for result in last),
        "steps lost": round(max(lost)),
        "skipped": max(len(of_kind(result, "step_skipped")) for result in last),
        "last event": f"{final[:40]} (cannot be saved: {reason})" if reason else final[:40],
    }


def twin_of(failure: Failure, zoo: Sequence[Failure]) -> Failure:
    """Return the first failure with this healthy twin: the twin is trained once for all of them."""
    return next(item for item in zoo if item.twin == failure.twin)


def trial_of(name: str, ill: bool, seed: int, mode: str) -> Trial:
    settings = MODES[mode]
    return Trial(name, ill, seed, None if settings is None else tuple(settings.items()))


def trials_of(zoo: Sequence[Failure], seeds: Sequence[int]) -> list[Trial]:
    """Every failure in every mode, and every twin bare and with rollback."""
    ill = [trial_of(failure.name, True, seed, mode) for failure in zoo for seed in seeds for mode in MODES]
    twins = dict.fromkeys(twin_of(failure, zoo).name for failure in zoo)
    return ill + [
        trial_of(name, False, seed, mode) for name in twins for seed in seeds for mode in ("bare", "rollback")
    ]


def all_results(
    trials: Sequence[Any], workers: int, keep: Path | None, run: Callable[[Any, Path], Result] = run
) -> dict[Any, Result]:
    """Run trials side by side, each in a process that only imported before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "psutil", "mlflow_stability.session.autolog"])
    with (
        tempfile.TemporaryDirectory(prefix="rescue-", ignore_cleanup_errors=True) as place,
        ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool,
    ):
        done = {
            trial: pickle.loads(file.read_bytes()) for trial in trials if keep and (file := kept(trial, keep)).is_file()
        }
        futures = {
            trial: pool.submit(run, trial, Path(place, str(number)))
            for number, trial in enumerate(trials)
            if trial not in done
        }
        for trial, future in futures.items():
            done[trial] = future.result()
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                kept(trial, keep).write_bytes(pickle.dumps(done[trial]))
            if len(done) % 10 == 0:
                print(f"{len(done)} of {len(trials)} trainings", file=sys.stderr, flush=True)
    return done


def kept(trial: Any, keep: Path) -> Path:
    return keep / f"{hashlib.sha256(repr(trial).encode()).hexdigest()[:16]}.pickle"


def of_kind(result: Result, kind: str) -> list[Any]:
    return [event for event in result.events if event.kind == kind]


def ratio(result: Result, healthy: Result) -> float:
    value = result.notes.final_loss / healthy.notes.final_loss
    return value if math.isfinite(value) else math.inf


def shows_at(failure: Failure, result: Result, healthy: Result) -> int | None:
    """Return the first step whose loss is clearly worse than the twin's, or not finite."""
    usual = statistics.median(abs(loss) for loss in healthy.notes.losses)
    pairs = zip(result.notes.losses, healthy.notes.losses, strict=False)
    for step, (ill, well) in enumerate(pairs, start=1):
        if step >= failure.onset and not ill - well <= CLEARLY_WORSE * usual:
            return step
    return None


def delay(failure: Failure, result: Result, shows: int | None) -> int | None:
    """Return the steps from where the failure shows to the first event.

    An event before the onset is no answer to it; the step before may have done what is wrong at the onset.
    """
    first = next((event.step for event in result.events if event.step >= failure.onset - 1), None)
    return None if first is None or shows is None else first - shows


def largest(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def healthy_twins(results: dict[Trial, Result]) -> list[dict[str, Cell]]:
    """Nothing may happen to healthy trainings, and they should have no events."""
    twins = {trial: result for trial, result in results.items() if not trial.ill and trial.autolog is not None}
    changed = sum(
        result.notes.losses != results[Trial(trial.failure, False, trial.seed)].notes.losses
        for trial, result in twins.items()
    )
    acts = sum(len(of_kind(item, "rollback")) + len(of_kind(item, "step_skipped")) for item in twins.values())
    events = [
        f"{trial.failure}: {event.kind} at {event.step}" for trial, twin in twins.items() for event in twin.events
    ]
    return [
        {"what": f"{len(twins)} healthy twins: rollbacks and skipped steps", "result": str(acts)},
        {"what": "healthy twins whose losses differ from the bare ones", "result": str(changed)},
        {"what": "events of healthy twins", "result": ", ".join(events) or "none"},
    ]
