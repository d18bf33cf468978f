"""Make a `RunHistory` of the content of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.assemble.clock import Clock, clock_of
from mlflow_stability.importers.assemble.log_content import Column, LogContent, LogEvent
from mlflow_stability.importers.log_text import printable_path
from mlflow_stability.vocabulary.measured import Series
from mlflow_stability.vocabulary.result import Finding, Span
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text import Meaning, counted, metric_meanings, sentence


def history_of(
    content: LogContent, path: Path, log_format: str, *, name: str = "", allow_single_values: bool = False
) -> RunHistory:
    """Return the run in a log.

    Args:
        content: What was read.
        path: Its source.
        log_format: The name of the format, such as `csv`.
        name: The name of the run; by default that of the file.
        allow_single_values: Accept a run without a curve, such as one of MLflow that has only begun.
    """
    columns = {metric: column for metric, column in content.columns.items() if len(column)}
    curves = [metric for metric, column in columns.items() if len(column) > 1]
    if not curves and not (allow_single_values and columns):
        raise UnreadableLogError(
            f"{printable_path(path)} is not a readable training log: no metric has two or more values. "
            "CSV, JSON lines, TensorBoard event files, MLflow folders and text such as `step 10 loss 2.3` can be read."
        )
    meanings = _meanings(columns, curves)
    main = _main(columns, meanings) if columns else None
    clock = None if main is None else clock_of(columns, main, content.totals())
    metrics = tuple(
        _metric(metric, meanings[metric], column, clock, content) for metric, column in columns.items() if clock
    )
    points = sum(len(metric.series) for metric in metrics)
    return RunHistory(
        source=str(path),
        name=name or path.name,
        format=log_format,
        basis=f"{counted(points, 'value')} of {counted(len(metrics), 'metric')}"
        + (", thinned" if content.thinned else ""),
        metrics=metrics,
        outcome=content.outcome,
        outcome_detail=content.outcome_detail,
        params=content.params,
        tags=content.tags,
        notes=(*content.notes, *_notes(content, clock)),
        ordinal_steps=clock is not None and main is not None and clock.numbers(main),
        step_unit="step" if clock is None else clock.unit,
        complete=not content.thinned,
        reported=tuple(_placed(event, clock) for event in content.reported),
    )


def _meanings(columns: Mapping[str, Column], curves: Sequence[str]) -> dict[str, Meaning]:
    """Give meanings to curves first, so that a summary's `train_loss` does not replace the curve of the loss."""
    meanings = metric_meanings(curves)
    curve_signals = {meaning.signal for meaning in meanings.values()}
    for name, meaning in metric_meanings(columns).items():
        if name not in meanings:
            repeats = meaning.is_known and (meaning.duplicate_of or meaning.signal in curve_signals)
            meanings[name] = Meaning(name, bookkeeping=meaning.bookkeeping) if repeats else meaning
    return meanings


def _main(columns: Mapping[str, Column], meanings: Mapping[str, Meaning]) -> Column:
    """Return the metric whose steps count for all: the loss of the whole model, unless it is sparse."""
    useful = {name: column for name, column in columns.items() if not meanings[name].bookkeeping} or dict(columns)
    longest = max(map(len, useful.values()))

    def rank(name: str) -> tuple[bool, bool, int]:
        meaning = meanings[name]
        dense = len(useful[name]) * 5 >= longest
        whole = meaning.quantity == "loss" and not meaning.place and not meaning.duplicate_of
        return dense and whole, dense and meaning.quantity == "loss", len(useful[name])

    return useful[max(useful, key=rank)]


def _metric(name: str, meaning: Meaning, column: Column, clock: Clock, content: LogContent) -> Metric:
    steps, attempts = clock.of(column)
    lines = content.lines_of(np.frombuffer(column.rows, np.int64))
    values = np.frombuffer(column.values, np.float64)
    times = np.frombuffer(column.times, np.float64)
    if len(steps) > 1:
        order = np.lexsort((steps, attempts))
        steps, attempts, values, times = steps[order], attempts[order], values[order], times[order]
        lines = None if lines is None else lines[order]
        moved = (np.diff(steps) != 0) | (np.diff(attempts) != 0)
        if clock.averaged:
            values = _step_means(values, moved)
        same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
        kept = np.append(True, moved | ~same)  # a line that was printed twice counts once
        steps, attempts, values, times = steps[kept], attempts[kept], values[kept], times[kept]
        lines = None if lines is None else lines[kept]
    return Metric(name, meaning, Series(meaning.signal, steps, values, attempts, times), lines)


def _placed(event: LogEvent, clock: Clock | None) -> Finding:
    """Return a finding at the step and in the attempt of the row before it."""
    finding = event.finding
    if clock is None or not len(clock.rows):
        return finding
    at = max(0, int(np.searchsorted(clock.rows, event.row, "right")) - 1)
    attempt = int(np.searchsorted(clock.begins, event.row, "right"))
    use_row = clock.recounted or clock.ordinal or not event.own_step or clock.unit != "step"
    ordinal = int(np.searchsorted(clock.main, event.row, "right")) - 1 if clock.ordinal else int(clock.steps[at])
    step = max(0, ordinal) if use_row else finding.step
    return replace(finding, span=Span(step, step, step), where=replace(finding.where, attempt=attempt))


def _step_means(values: NDArray[np.float64], moved: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Replace each value by the mean of those at its step."""
    begins = np.flatnonzero(np.append(True, moved))
    counts = np.diff(np.append(begins, len(values)))
    with np.errstate(all="ignore"):
        return np.repeat(np.add.reduceat(values, begins) / counts, counts)


def _notes(content: LogContent, clock: Clock | None) -> list[str]:
    notes = []
    if clock is not None and clock.reason:
        notes.append(sentence(clock.reason))
    if clock is not None and len(clock.begins):
        times = "once" if len(clock.begins) == 1 else f"{len(clock.begins)} times"
        notes.append(f"The step decreases {times}: {len(clock.begins) + 1} runs or attempts, one after the other.")
    if content.thinned:
        notes.append(
            "The log is too long for memory: of every four consecutive values of its longest metrics, only the "
            "lowest and the highest are kept."
        )
    if content.names_left_out:
        notes.append(f"Only the first {len(content.columns):,} metrics are read.")
    return notes
