"""Turn what was recorded of a run into a `RunHistory`, from MLflow's file layout or what was read; without MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mlflow_stability.tracking.artifacts import EVENTS_FOLDERS, RECORD_FOLDERS, EventLine, events_order, read_events
from mlflow_stability.tracking.keys import parse_key
from mlflow_stability.tracking.read.run_record import RunRecord, joined, part_order, read_part
from mlflow_stability.tracking.tag_names import PREFIX, process_end
from mlflow_stability.vocabulary.measured.signal import Series
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import DAMAGED, Closing, Fact, Gap, Metric, Note, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning
from mlflow_stability.vocabulary.text.phrases import some_of

RecordedLine = tuple[int, EventLine]  # number of the recording, and a line of its events
_OUTCOMES = {"FINISHED": "finished", "FAILED": "crashed", "KILLED": "killed", "RUNNING": "running"}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run has beside metrics and artifacts."""

    source: str
    name: str
    status: str = ""  # MLflow's word for its status: ``RUNNING``, ``FINISHED``
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def recorded_history(facts: RunFacts, record: RunRecord, lines: Sequence[RecordedLine]) -> RunHistory:
    pairs, attempts = np.unique(np.stack([record.recording, record.attempt], axis=1), axis=0, return_inverse=True)
    attempts = attempts.reshape(-1).astype(np.int64)
    number_of = {(int(recording), int(attempt)): number for number, (recording, attempt) in enumerate(pairs)}
    steps = int(np.count_nonzero(np.diff(record.step)) + 1)
    share = "the full record" if record.every == 1 else f"every {record.every:,}th value of the full record"
    outcome, detail = ending(facts, lines)
    return RunHistory(
        source=facts.source,
        name=facts.name,
        format="recorded",
        basis=f"{share} ({len(record):,} values of {steps:,} steps)",
        metrics=tuple(_metrics(record, attempts)),
        events=events_of(lines, number_of),
        gaps=gaps_of(lines),
        outcome=outcome,
        outcome_detail=detail,
        params={**settings_of(lines), **facts.params},
        tags={**notes_of(lines), **facts.tags},
    )


def _metrics(record: RunRecord, attempts: NDArray[np.int64]) -> Iterator[Metric]:
    rows = np.argsort(record.signal, kind="stable")
    counts = np.bincount(record.signal, minlength=len(record.signals))
    for signal, count, end in zip(record.signals, counts, np.cumsum(counts), strict=True):
        own = rows[end - count : end]
        series = Series(signal, record.step[own].astype(np.int64), record.value[own], attempts[own], record.time[own])
        yield Metric(str(signal), Meaning(signal.quantity, signal.place, is_known=True), series)


def recorded_folder(folder: Path, facts: RunFacts) -> RunHistory | None:
    """Return the history of a run in MLflow's file layout; None if it has no record."""
    artifacts = folder / "artifacts"
    parts = _sorted_files(artifacts, RECORD_FOLDERS, part_order)
    if not parts:
        return None
    lines: list[RecordedLine] = []
    left_out: list[str] = []
    for (recording, _), file in _sorted_files(artifacts, EVENTS_FOLDERS, events_order):
        text, name = file.read_bytes().decode("utf-8", "replace"), str(file.relative_to(artifacts))
        lines += [(recording, line) for line in read_events(text, name, lambda place, _: left_out.append(place))]
    record = []
    for _, file in parts:
        try:
            record.append(read_part(file))
        except (pa.ArrowException, ValueError, KeyError, TypeError):
            left_out.append(f"{file.relative_to(artifacts)}")
    return with_left_out(recorded_history(facts, joined(record), lines), left_out) if record else None


def _sorted_files(
    artifacts: Path, folders: Sequence[str], order: Callable[[str], tuple[int, int] | None]
) -> list[tuple[tuple[int, int], Path]]:
    files = []
    for folder in folders:
        paths = (artifacts / folder).iterdir() if (artifacts / folder).is_dir() else ()
        files += sorted((place, file) for file in paths if (place := order(file.name)) is not None)
    return files


def with_left_out(history: RunHistory, left_out: Sequence[str]) -> RunHistory:
    """Add a note on what could not be read."""
    if not left_out:
        return history
    return replace(history, notes=(*history.notes, f"{DAMAGED}: {some_of(left_out, 1)}."))


def with_metrics_of_the_script(history: RunHistory, metrics: Iterable[Metric]) -> RunHistory:
    """Add what the script logged itself; a metric that was recorded too is marked as a duplicate."""
    recorded = {metric.series.signal: metric.name for metric in history.metrics}
    numbers, starts = _starts_of_attempts(history.metrics)
    added = []
    for metric in metrics:
        if parse_key(metric.name) is None:
            same = recorded.get(metric.series.signal) or _recorded_as(metric, history.of("val_loss"))
            series = _in_attempts(metric.series, numbers, starts)
            meaning = replace(metric.meaning, duplicate_of=same)
            added.append(replace(metric, meaning=meaning, series=series, of_the_script=True))
    return replace(history, metrics=(*history.metrics, *added))


def _starts_of_attempts(metrics: Iterable[Metric]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the attempts of a record, and the time of the first value of each."""
    first: dict[int, float] = {}
    for series in (metric.series for metric in metrics if len(metric.series)):
        for at in (0, *(np.flatnonzero(np.diff(series.attempts)) + 1).tolist()):
            number, time = int(series.attempts[at]), float(series.times[at])
            first[number] = min(time, first.get(number, time))
    numbers = sorted(first)
    return np.array(numbers, np.int64), np.array([first[number] for number in numbers], np.float64)


def _in_attempts(series: Series, numbers: NDArray[np.int64], starts: NDArray[np.float64]) -> Series:
    """Assign what the script logged to the attempts of the record.

    A script that counts on through a rollback has one attempt, whose values would look like a restart.
    """
    if len(numbers) < 2 or series.attempts.any() or not (np.diff(starts) > 0).all():
        return series
    at = np.searchsorted(starts, series.times, side="right") - 1
    return replace(series, attempts=np.maximum.accumulate(numbers[np.maximum(at, 0)]))


def _recorded_as(metric: Metric, recorded: Sequence[Metric]) -> str:
    """Return the recorded validation loss with the same values, whose place differs if other names were logged later.

    What was logged before the first recorded step is not in the record.
    """
    values = metric.series.values
    for other in recorded if metric.meaning.quantity == "val_loss" else ():
        own = other.series.values
        if 0 < len(own) <= len(values) and np.array_equal(values[len(values) - len(own) :], own, equal_nan=True):
            return other.name
    return ""


def ending(facts: RunFacts, lines: Sequence[RecordedLine]) -> tuple[str, str]:
    """Return how the last recording ended, and the detail."""
    closing = next((line for _, line in reversed(lines) if isinstance(line, Closing)), None)
    if closing is not None:
        return closing.outcome, closing.detail
    outcome, detail = process_end(facts.tags)
    return (outcome, detail) if outcome else (_OUTCOMES.get(facts.status, ""), "")


def events_of(
    lines: Sequence[RecordedLine], number_of: Mapping[tuple[int, int], int] | None = None
) -> tuple[Finding, ...]:
    """Return the recorded findings, under the attempts of the history."""
    events = []
    for recording, line in lines:
        if isinstance(line, Finding):
            attempt = line.attempt if number_of is None else number_of.get((recording, line.attempt), line.attempt)
            events.append(replace(line, where=replace(line.where, attempt=attempt)))
    return tuple(events)


def notes_of(lines: Sequence[RecordedLine]) -> dict[str, str]:
    """Return notes as tags, which they were in version 0.1."""
    return {f"{PREFIX}{line.key}": line.value for _, line in lines if isinstance(line, Note)}


def settings_of(lines: Sequence[RecordedLine]) -> dict[str, str]:
    """Return settings as parameters; of those, a run itself has only what people choose. The first recording counts."""
    return {f"{PREFIX}{line.key}": line.value for _, line in reversed(lines) if isinstance(line, Fact)}


def gaps_of(lines: Sequence[RecordedLine]) -> tuple[Gap, ...]:
    """Return the steps that could not be recorded."""
    return tuple(line for _, line in lines if isinstance(line, Gap))
