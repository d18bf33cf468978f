"""Turns what was recorded of a run into a `RunHistory`: the full record, and what was judged while it trained.

In: a `RunRecord` and what was said beside it; or the folder of a run in MLflow's file layout, wherever it was moved to.
Guarantees: MLflow is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mlflow_stability.tracking.artifacts.folders import EVENTS_FOLDERS, RECORD_FOLDERS
from mlflow_stability.tracking.artifacts.record_events import Said, events_order, lines_in, read_line
from mlflow_stability.tracking.artifacts.record_parts import part_order, read_part
from mlflow_stability.tracking.keys import parse_key
from mlflow_stability.tracking.read.run_record import RunRecord, joined
from mlflow_stability.tracking.tag_names import OURS, process_end
from mlflow_stability.vocabulary.measured import Series
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import DAMAGED, Closing, Fact, Gap, Metric, Note, RunHistory
from mlflow_stability.vocabulary.text import Meaning


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run says of itself."""

    source: str
    name: str
    status: str = ""
    """MLflow's word for how it stands: ``RUNNING``, ``FINISHED``."""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


_ENDINGS = {"FINISHED": "finished", "FAILED": "crashed", "KILLED": "killed", "RUNNING": "running"}


def recorded_history(facts: RunFacts, record: RunRecord, said: Sequence[tuple[int, Said]]) -> RunHistory:
    """The history of a run whose full record is there."""
    pairs, attempts = np.unique(np.stack([record.recording, record.attempt], axis=1), axis=0, return_inverse=True)
    attempts = attempts.reshape(-1).astype(np.int64)
    number_of = {(int(recording), int(attempt)): number for number, (recording, attempt) in enumerate(pairs)}
    steps = int(np.count_nonzero(np.diff(record.step)) + 1)
    outcome, detail = ending(facts, said)
    return RunHistory(
        source=facts.source,
        name=facts.name,
        format="recorded",
        basis=f"{_share(record)} ({len(record):,} values of {steps:,} steps)",
        metrics=tuple(_metrics(record, attempts)),
        events=events_of(said, number_of),
        gaps=gaps_of(said),
        outcome=outcome,
        outcome_detail=detail,
        params={**settings_of(said), **facts.params},
        tags={**notes_of(said), **facts.tags},
    )


def _share(record: RunRecord) -> str:
    return "the full record" if record.every == 1 else f"every {record.every:,}th value of the full record"


def recorded_folder(folder: Path, facts: RunFacts) -> RunHistory | None:
    """The history of a run in MLflow's file layout; None where nothing of ours lies in its artifacts."""
    artifacts = folder / "artifacts"
    parts = [each for folder in RECORD_FOLDERS for each in _sorted(artifacts / folder, part_order)]
    if not parts:
        return None
    said: list[tuple[int, Said]] = []
    left_out: list[str] = []
    events = [each for folder in EVENTS_FOLDERS for each in _sorted(artifacts / folder, events_order)]
    for (recording, _), file in events:
        for number, line in enumerate(lines_in(file.read_bytes().decode("utf-8", "replace")), start=1):
            try:
                each = read_line(line)
            except ValueError:  # of a run that is still being written, the last one
                left_out.append(f"line {number} of {file.relative_to(artifacts)}")
                continue
            if each is not None:
                said.append((recording, each))
    record = []
    for _, file in parts:
        try:
            record.append(read_part(file))
        except (pa.ArrowException, ValueError, KeyError, TypeError):
            left_out.append(f"{file.relative_to(artifacts)}")
    return with_gaps_told(recorded_history(facts, joined(record), said), left_out) if record else None


def with_gaps_told(history: RunHistory, left_out: Sequence[str]) -> RunHistory:
    """The history with a remark on what could not be read of it."""
    if not left_out:
        return history
    more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
    note = f"{DAMAGED}: {left_out[0]}{more}."
    return replace(history, notes=(*history.notes, note))


def with_metrics_of_the_script(history: RunHistory, metrics: Iterable[Metric]) -> RunHistory:
    """The history with what the script logged itself; a metric that we measured or heard too is marked as the same."""
    ours = {metric.series.signal: metric.name for metric in history.metrics}
    numbers, begins = _begins(history.metrics)
    theirs = []
    for each in metrics:
        if parse_key(each.name) is None:
            same = ours.get(each.series.signal) or _heard_as(each, history.of("val_loss"))
            series = _in_attempts(each.series, numbers, begins)
            meaning = replace(each.meaning, duplicate_of=same)
            theirs.append(replace(each, meaning=meaning, series=series, of_the_script=True))
    return replace(history, metrics=(*history.metrics, *theirs))


def _begins(metrics: Iterable[Metric]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The attempts of a record, and when the first value of each was measured."""
    first: dict[int, float] = {}
    for series in (metric.series for metric in metrics if len(metric.series)):
        for at in (0, *(np.flatnonzero(np.diff(series.attempts)) + 1).tolist()):
            number, time = int(series.attempts[at]), float(series.times[at])
            first[number] = min(time, first.get(number, time))
    numbers = sorted(first)
    return np.array(numbers, np.int64), np.array([first[each] for each in numbers], np.float64)


def _in_attempts(series: Series, numbers: NDArray[np.int64], begins: NDArray[np.float64]) -> Series:
    """What the script logged, by the attempts of the record: of a rollback a script that only counts on knows nothing.

    All in one attempt, its values would reach across every rollback, which would look like a restart.
    """
    if len(numbers) < 2 or series.attempts.any() or not (np.diff(begins) > 0).all():
        return series
    at = np.searchsorted(begins, series.times, side="right") - 1
    return replace(series, attempts=np.maximum.accumulate(numbers[np.maximum(at, 0)]))


def _heard_as(metric: Metric, heard: Sequence[Metric]) -> str:
    """Which validation loss of ours is this very one: beside names that came later it may go by another place by now.

    What was logged before the first step that we recorded was not heard.
    """
    values = metric.series.values
    for each in heard if metric.meaning.quantity == "val_loss" else ():
        known = each.series.values
        if 0 < len(known) <= len(values) and np.array_equal(values[len(values) - len(known) :], known, equal_nan=True):
            return each.name
    return ""


def ending(facts: RunFacts, said: Sequence[tuple[int, Said]]) -> tuple[str, str]:
    """How the last of its recordings ended, and the detail."""
    closings = [each for _, each in said if isinstance(each, Closing)]
    if closings:
        return closings[-1].outcome, closings[-1].detail
    said_by_tags = process_end(facts.tags)
    return said_by_tags if said_by_tags[0] else (_ENDINGS.get(facts.status, ""), "")


def events_of(
    said: Sequence[tuple[int, Said]], number_of: Mapping[tuple[int, int], int] | None = None
) -> tuple[Finding, ...]:
    """What was judged live, under the attempts of the history."""
    found = []
    for recording, each in said:
        if isinstance(each, Finding):
            attempt = each.attempt if number_of is None else number_of.get((recording, each.attempt), each.attempt)
            found.append(replace(each, where=replace(each.where, attempt=attempt)))
    return tuple(found)


def notes_of(said: Sequence[tuple[int, Said]]) -> dict[str, str]:
    """What was noted while it trained, as tags: in version 0.1 they were tags of the run."""
    return {f"{OURS}{each.key}": each.value for _, each in said if isinstance(each, Note)}


def settings_of(said: Sequence[tuple[int, Said]]) -> dict[str, str]:
    """What was set when it began, as parameters: of these a run of ours has only those that people choose."""
    facts = [each for _, each in said if isinstance(each, Fact)]
    return {f"{OURS}{each.key}": each.value for each in reversed(facts)}


def gaps_of(said: Sequence[tuple[int, Said]]) -> tuple[Gap, ...]:
    """The steps that could not be recorded."""
    return tuple(each for _, each in said if isinstance(each, Gap))


def _metrics(record: RunRecord, attempts: NDArray[np.int64]) -> Iterable[Metric]:
    rows = np.argsort(record.signal, kind="stable")
    ends = np.cumsum(np.bincount(record.signal, minlength=len(record.signals)))
    begin = 0
    for signal, end in zip(record.signals, ends.tolist(), strict=True):
        mine = rows[begin:end]
        begin = end
        series = Series(
            signal, record.step[mine].astype(np.int64), record.value[mine], attempts[mine], record.time[mine]
        )
        yield Metric(str(signal), Meaning(signal.quantity, signal.place, known=True), series)


def _sorted(folder: Path, order: Callable[[str], tuple[int, int] | None]) -> list[tuple[tuple[int, int], Path]]:
    if not folder.is_dir():
        return []
    return sorted((place, file) for file in folder.iterdir() if (place := order(file.name)) is not None)
