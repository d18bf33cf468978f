"""Healthy trainings: what is found in them, and whether watching changes them."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.real_records import HEALTHY as HEALTHY_LABEL
from benchmarks.real_records import Findings, records_of, rows_of
from benchmarks.rule_recall import QUICK_LONGEST, How, judged_healthy
from benchmarks.table import Cell, Table, table_of
from zoo.healthy.catalog import HEALTHY
from zoo.judged import VIEWS, Judged, judged, trained, words
from zoo.slow_failures import SLOW_FAILURES
from zoo.tutorials.catalog import TUTORIALS, tutorial_named
from zoo.tutorials.trial import MODES, Mode, Trial, tried

from mlflow_stability.kinds.catalog import DETECTORS, RULES
from mlflow_stability.manual.pages import FALSE_ALARMS, Measured
from mlflow_stability.vocabulary.result import Severity

FAILURES = {failure.name: failure for failure in SLOW_FAILURES}
TRAININGS = {train.__name__: train for train in (*HEALTHY, *(failure.train for failure in SLOW_FAILURES))}


def healthy_trainings(
    only: tuple[str, ...] = (),
    seeds: int = 3,
    first_seed: int = 0,
    jobs: int = 1,
    failures: bool = False,
    keep: Path | None = None,
) -> Iterator[Table]:
    """Judge every training of `zoo.healthy.catalog`, which has to have learned its task, by the views of `zoo.judged`.

    `failures` takes the trainings that break slowly instead, which should have findings. `keep` keeps what was
    recorded, so that it can be judged again without training.
    """
    names = list(FAILURES) if failures else [train.__name__ for train in HEALTHY]
    names = _only(names, only)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = {
            (name, seed): pool.submit(judge, name, seed, keep)
            for seed in range(first_seed, first_seed + seeds)
            for name in names
        }
        results = {key: future.result() for key, future in futures.items()}
    yield table_of("Findings by training", [row_of(name, seed, it) for (name, seed), it in results.items()])
    yield table_of("Messages of at least WARNING", messages(results))
    right = [result.names(FAILURES[name].expected) for (name, _), result in results.items() if name in FAILURES]
    notes = [f"{sum(bool(it.failure) for it in results.values())} of {len(results)} trainings did not learn"]
    if right:
        notes.append(f"{sum(right)} of {len(right)} have the right finding")
    yield table_of("Trainings without a finding", summary_of(results), notes)


def judge(name: str, seed: int, folder: Path | None) -> Judged:
    """Train in this process, unless the recording was kept, and judge it."""
    kept = None if folder is None else folder / f"{name}_{seed}.pickle"
    if kept is not None and kept.is_file():
        return judged(pickle.loads(kept.read_bytes()), anew=True)
    result = trained(TRAININGS[name], seed)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(pickle.dumps(result))
    return judged(result)


def row_of(name: str, seed: int, result: Judged) -> dict[str, Cell]:
    kinds = {view: words(outcome) for view in VIEWS if (outcome := result.kinds(view))}
    return {
        "training": name,
        "seed": seed,
        "steps": result.steps,
        "seconds": result.seconds,
        "learned": f"NO: {result.failure}" if result.failure else "yes",
        "findings": "; ".join(f"{view}: {text}" for view, text in kinds.items()) or "none",
    }


def messages(results: dict[tuple[str, int], Judged]) -> list[dict[str, Cell]]:
    rows = {
        (name, seed, finding.severity.name, finding.step, finding.message): None
        for (name, seed), result in results.items()
        for findings in result.findings.values()
        for finding in findings
        if finding.severity >= Severity.WARNING
    }
    return [dict(zip(("training", "seed", "severity", "step", "message"), row, strict=True)) for row in rows]


def summary_of(results: dict[tuple[str, int], Judged]) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = [
        {
            "view": view,
            "without": sum(not result.kinds(view) for result in results.values()),
            "findings": words(sum((result.kinds(view) for result in results.values()), Counter[str]())),
        }
        for view in VIEWS
    ]
    silent = sum(not any(result.kinds(view) for view in VIEWS) for result in results.values())
    return [*rows, {"view": "all", "without": silent}]


def tutorials(
    only: tuple[str, ...] = (),
    seeds: int = 3,
    first_seed: int = 0,
    jobs: int = 1,
    modes: tuple[Mode, ...] = MODES[1:],
    bare: Path | None = None,
) -> Iterator[Table]:
    """Train 43 healthy trainings as tutorials write them: nothing may be found, done or changed.

    A training whose bare score is out of its bounds is not healthy. Bare results are kept in the file `bare` and used
    again. `same` counts seeds whose weights end bit-identical to the bare training.
    """
    names = _only([tutorial.name for tutorial in TUTORIALS], only)
    kept: dict[tuple[str, int], Trial] = pickle.loads(bare.read_bytes()) if bare and bare.is_file() else {}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = {
            (name, seed, mode): pool.submit(run_tutorial, name, seed, mode)
            for name in names
            for seed in range(first_seed, first_seed + seeds)
            for mode in ("bare", *modes)
            if mode != "bare" or (name, seed) not in kept
        }
        results: dict[tuple[str, int, Mode], Trial] = {(*key, "bare"): trial for key, trial in kept.items()}
        results |= {key: future.result() for key, future in futures.items()}
    if bare:
        kept = {(name, seed): trial for (name, seed, mode), trial in results.items() if mode == "bare"}
        bare.write_bytes(pickle.dumps(kept))
    of_tutorial = {
        name: {(seed, mode): trial for (its, seed, mode), trial in results.items() if its == name} for name in names
    }
    yield table_of("Tutorials", [tutorial_row(name, trials, modes) for name, trials in of_tutorial.items()])
    yield table_of(
        "Problems", [problem for name, trials in of_tutorial.items() for problem in problems_of(name, trials)]
    )


def run_tutorial(name: str, seed: int, mode: Mode) -> Trial:
    return tried(tutorial_named(name), seed, mode)


def tutorial_row(name: str, trials: dict[tuple[int, Mode], Trial], modes: Sequence[Mode]) -> dict[str, Cell]:
    def mean_score(mode: Mode) -> float:
        scores = [trial.score for (_, its), trial in trials.items() if its == mode]
        return sum(scores) / len(scores)

    watched = {key: trial for key, trial in trials.items() if key[1] != "bare"}
    same = sum(trial.weights == trials[seed, "bare"].weights for (seed, _), trial in watched.items())
    outcomes = Counter(outcome for trial in watched.values() for outcome in trial.outcomes)
    return {
        "training": name,
        **{mode: mean_score(mode) for mode in ("bare", *modes)},
        "same": f"{same}/{len(watched)}",
        "warnings": sum(len(trial.warnings) for trial in watched.values()),
        "rollbacks": sum(trial.actions("rollback") for trial in watched.values()),
        "skipped": sum(trial.actions("step_skipped") for trial in watched.values()),
        "CPU seconds": sum(trial.seconds for trial in trials.values()),
        "outcomes": ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common()),
    }


def problems_of(name: str, trials: dict[tuple[int, Mode], Trial]) -> Iterator[dict[str, Cell]]:
    for (seed, mode), trial in trials.items():
        texts = [f"ended by {trial.error}"] if trial.error and mode != "bare" else []
        if mode == "bare" and not trial.learned:
            texts = [f"NOT HEALTHY: {trial.score:.4g} {trial.error}"]
        verdicts = [f"verdict: {verdict}" for verdict in trial.verdicts] if trial.warnings else []
        for text in (*texts, *trial.warnings, *verdicts):
            yield {"training": name, "seed": seed, "mode": mode, "what": str(text)}


def false_alarms(
    recordings: Path | None = None, records: Path | None = None, drawn: int = 400, write: bool = False
) -> Iterator[Table]:
    """Count runs without a fault that have each finding at WARNING or CRITICAL.

    `recordings` is a folder that `healthy_trainings` kept; `records` one of real records, as `real_records` takes them.
    `write` puts the figures into `mlflow_stability/manual/false_alarms.json`.
    """
    measured = [in_trainings(recordings)] if recordings else []
    measured.append(in_drawn_curves(drawn))
    if records:
        measured.append(in_records(records))
    rows = [
        {"runs": item.runs, "what": item.what, "flagged": words(Counter(item.flagged)) or "none"} for item in measured
    ]
    yield table_of("", rows)
    if write:
        text = json.dumps([asdict(item) for item in measured], indent=2, ensure_ascii=False)
        FALSE_ALARMS.write_text(text + "\n", encoding="utf-8")


def in_trainings(folder: Path) -> Measured:
    names = {train.__name__ for train in HEALTHY}
    kept = [file for file in sorted(folder.glob("*.pickle")) if file.stem.rpartition("_")[0] in names]
    results = [judged(pickle.loads(file.read_bytes()), anew=True) for file in kept]
    kinds = [{*result.kinds("live"), *result.kinds("recorded")} for result in results if not result.failure]
    count = len({file.stem.rpartition("_")[0] for file in kept})
    return _measured(f"healthy trainings of {count} kinds, watched by all detectors", kinds, loss_alone=False)


def in_drawn_curves(count: int) -> Measured:
    runs = judged_healthy(range(count), How(longest=QUICK_LONGEST))
    return _measured("drawn healthy curves, half of them made to look ill", [set(run.serious) for run in runs])


def in_records(folder: Path) -> Measured:
    with TemporaryDirectory() as kept:
        findings = Findings((folder / "data").resolve(), Path(kept) / "findings.json")
        records = records_of(rows_of(folder / "index.csv", ()), findings)
    healthy = [record for record in records if record.label == HEALTHY_LABEL]
    kinds = [{finding.kind for finding in record.findings} for record in healthy]
    return _measured("healthy logs of other people", kinds)


def _measured(what: str, kinds_of_runs: list[set[str]], *, loss_alone: bool = True) -> Measured:
    flagged = Counter(kind for kinds in kinds_of_runs for kind in kinds)
    kinds = sorted({finding_type.kind for finding_type in (*DETECTORS, *RULES)})
    return Measured(what, len(kinds_of_runs), kinds, dict(sorted(flagged.items())), loss_alone)


def _only(names: list[str], parts: Sequence[str]) -> list[str]:
    return [name for name in names if not parts or any(part in name for part in parts)]
