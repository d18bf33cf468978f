"""Make a `RunHistory` of the content of a log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.doubts import doubts_about, without_meaning
from mlflow_stability.importers.log_content import Column, LogContent, LogEvent
from mlflow_stability.importers.log_text import printable_path
from mlflow_stability.vocabulary.measured.signal import Series
from mlflow_stability.vocabulary.result import Finding, Span
from mlflow_stability.vocabulary.run import Metric, RunHistory, number_attempts
from mlflow_stability.vocabulary.text.metric_names import Meaning, metric_meanings
from mlflow_stability.vocabulary.text.phrases import counted, sentence

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_RESTART = 4.0
"""Minimum ratio of the median moves after the first and after later values of an epoch, for means that restart."""
_FEWEST_EPOCHS = 4  # with which a mean is known to restart
_FEWEST_IN_EPOCH = 4  # values, on average
_MANY_EPOCHS = 50  # with which the mean of each whole one is enough
_MIN_SEVERAL_VALUES, _STEPS_OF_SEVERAL_VALUES = 16, 0.5
"""Number of values of a loss, and share of them that are at another step than the one before, at most, for those at
one step to be averaged: they are of the batches of an evaluation. The main curve is left as it is."""
_FORMATS_OF_ONE_LOSS = ("trainer_state",)  # batches of similar length make its losses alternate
_STEPS_OF_SEVERAL_RATES = 0.6  # the same of a learning rate, where two are logged at each step


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
    clock = None if main is None else clock_of(columns, main, content.totals(), content.starts)
    restarts = _restarting_means(columns, meanings, clock)
    metrics = [
        _metric(metric, meanings[metric], column, clock, content, restarts.get(metric))
        for metric, column in columns.items()
        if clock
    ]
    several = log_format not in _FORMATS_OF_ONE_LOSS
    doubts = {} if clock is None else doubts_about(metrics, content.doubts, may_take_turns=several)
    points = sum(len(metric.series) for metric in metrics)
    return RunHistory(
        source=str(path),
        name=name or path.name,
        format=log_format,
        basis=f"{counted(points, 'value')} of {counted(len(metrics), 'metric')}"
        + (", thinned" if content.thinned else ""),
        metrics=tuple(without_meaning(metric) if metric.name in doubts else metric for metric in metrics),
        outcome=content.outcome,
        outcome_detail=content.outcome_detail,
        params=content.params,
        tags=content.tags,
        notes=(*content.notes, *_notes(content, clock, restarts), *doubts.values()),
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


def _metric(
    name: str, meaning: Meaning, column: Column, clock: Clock, content: LogContent, left_out: NDArray[np.bool_] | None
) -> Metric:
    steps, attempts = clock.of(column)
    values = np.frombuffer(column.values, np.float64)
    chosen = np.arange(len(values)) if left_out is None else np.flatnonzero(~left_out)
    chosen = chosen[np.lexsort((steps[chosen], attempts[chosen]))]
    steps, attempts, values = steps[chosen], attempts[chosen], values[chosen]
    if len(steps) > 1:
        moved = (np.diff(steps) != 0) | (np.diff(attempts) != 0)
        is_loss = meaning.quantity in ("loss", "val_loss") and not np.array_equal(column.rows, clock.main)
        many = len(values) >= _MIN_SEVERAL_VALUES and moved.mean() <= _STEPS_OF_SEVERAL_VALUES
        if clock.averaged or (is_loss and many):
            begins = np.flatnonzero(np.append(True, moved))
            counts = np.diff(np.append(begins, len(values)))
            with np.errstate(all="ignore"):
                values = np.repeat(np.add.reduceat(values, begins) / counts, counts)
        same = (values[1:] == values[:-1]) | (np.isnan(values[1:]) & np.isnan(values[:-1]))
        # A line that was printed twice counts once, as does a bar that is drawn before the value of its step is known.
        kept = np.append(True, ~same | (moved & np.append(moved[1:] | same[1:], True)))
        if meaning.quantity == "learning_rate" and moved.mean() <= _STEPS_OF_SEVERAL_RATES:
            kept = np.append(True, moved)  # those of several optimizers: the first one's
        steps, attempts, values, chosen = steps[kept], attempts[kept], values[kept], chosen[kept]
    times = np.frombuffer(column.times, np.float64)[chosen]
    lines = content.lines_of(np.frombuffer(column.rows, np.int64)[chosen])
    return Metric(name, meaning, Series(meaning.signal, steps, values, attempts, times), lines)


def _restarting_means(
    columns: Mapping[str, Column], meanings: Mapping[str, Meaning], clock: Clock | None
) -> dict[str, NDArray[np.bool_]]:
    """Return which values of losses are to be left out, as they are means of the first batches of an epoch."""
    masks: dict[str, NDArray[np.bool_]] = {}
    for name, column in columns.items() if clock is not None and clock.recounted else ():
        if meanings[name].quantity in ("loss", "val_loss"):
            # An epoch begins where the steps begin again, else where the epoch is another.
            with np.errstate(invalid="ignore"):
                again = np.append(False, np.diff(np.frombuffer(column.steps)) < 0)
                another = np.append(False, np.diff(np.floor(np.frombuffer(column.epochs))) > 0)
            begins = again if again.sum() >= another.sum() else another
            mask = _first_means(np.frombuffer(column.values), begins)
            if mask.any():
                masks[name] = mask
    return masks


def _first_means(values: _Floats, begins: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which values are in the first tenth of an epoch, one at least, of a mean that begins again in each.

    Of many epochs, all but the last value of each. The first are means of a few batches, and the others are no
    independent values. Such a mean moves `_RESTART` times as far after its first value as after a later
    one. A value that is not finite is never left out, nor is the one before it.
    """
    none = np.zeros(len(values), np.bool_)
    if len(values) < 2:
        return none
    with np.errstate(invalid="ignore"):
        moves = np.abs(np.diff(values, append=np.nan))
    finite = np.isfinite(moves)
    at_begin, later = moves[begins & finite], moves[~begins & ~np.append(begins[1:], True) & finite]
    if len(at_begin) < _FEWEST_EPOCHS or len(later) < _FEWEST_IN_EPOCH * len(at_begin):
        return none
    if float(np.median(at_begin)) <= _RESTART * float(np.median(later)):
        return none
    starts = np.flatnonzero(begins)
    early = none.copy()
    for start, end in zip(starts, [*starts[1:], len(values)], strict=True):
        early[start : start + max(1, (end - start) // 10)] = True
    if len(starts) >= _MANY_EPOCHS:
        early = ~np.append(begins[1:], True)
    finite = np.isfinite(values)
    left_out: NDArray[np.bool_] = early & finite & np.append(finite[1:], True)
    return left_out


def _placed(event: LogEvent, clock: Clock | None) -> Finding:
    """Return a finding at the step and in the attempt of the row before it."""
    finding = event.finding
    if clock is None or not len(clock.rows):
        return finding
    at = max(0, int(np.searchsorted(clock.rows, event.row, "right")) - 1)
    attempt = int(np.searchsorted(clock.begins, event.row, "right"))
    use_row = clock.recounted or clock.ordinal or not event.own_step or clock.unit != "step"
    ordinal = clock.ordinals(np.array([event.row]))[0] if clock.ordinal else clock.steps[at]
    step = int(ordinal) if use_row else finding.step
    return replace(finding, span=Span(step, step, step), where=replace(finding.where, attempt=attempt))


def _notes(content: LogContent, clock: Clock | None, restarts: Collection[str]) -> list[str]:
    notes = []
    if restarts:
        names = ", ".join(restarts)
        notes.append(f"A mean that begins again in each epoch, whose early values there are left out: {names}.")
    if clock is not None and clock.reason:
        notes.append(sentence(clock.reason))
    if clock is not None and len(clock.begins):
        times = "once" if len(clock.begins) == 1 else f"{len(clock.begins)} times"
        begins = "The log begins another training" if clock.ordinal else "The step decreases"
        notes.append(f"{begins} {times}: {len(clock.begins) + 1} runs or attempts, one after the other.")
    if content.thinned:
        notes.append(
            "The log is too long for memory: of every four consecutive values of its longest metrics, only the "
            "lowest and the highest are kept."
        )
    if content.names_left_out:
        notes.append(f"Only the first {len(content.columns):,} metrics are read.")
    return notes


_MAX_REPEATED_SHARE = 0.1  # share of values of a metric with one value per epoch that may repeat the epoch before
_MAX_PER_EPOCH = 4  # values of one epoch that several processes print, or a progress bar that is drawn again
_MAX_STEP = 2.0**53
_MOVES_PER_STEP = 4  # moves of the epoch for one of the step, above which the step is not that of the training
_FEWEST_OF_TRAINING = 4  # values of a training that the log announces, such as a fold


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """Steps and attempts of the rows of one log."""

    rows: _Ints  # numbers of all rows, in order
    steps: _Floats  # step of each row; that of the row before where a row has none
    main: _Ints  # rows of the metric whose steps count for all
    begins: _Ints  # rows at which a new attempt begins
    ordinal: bool = False  # whether values are numbered in their order
    recounted: bool = False  # whether steps are computed from the log's epochs and steps
    reason: str = ""  # why steps are not simply those of the log
    averaged: bool = False
    """Whether the values of a metric at one step are averaged: those of several processes, or of a bar drawn again."""
    unit: str = "step"  # `epoch` where the log counts nothing else

    def numbers(self, column: Column) -> bool:
        """Whether a metric's values are numbered in their order, because its steps do not change."""
        return self.ordinal or (not self.recounted and _is_constant(np.frombuffer(column.steps, np.float64)))

    def ordinals(self, rows: _Ints) -> _Ints:
        """Return the number of each row, from 0 in each attempt, where values are numbered in their order."""
        first = np.append(0, np.searchsorted(self.main, self.begins))[np.searchsorted(self.begins, rows, "right")]
        numbers: _Ints = np.maximum(np.searchsorted(self.main, rows, "right") - 1 - first, 0).astype(np.int64)
        return numbers

    def of(self, column: Column) -> tuple[_Ints, _Ints]:
        """Return steps and attempts of a metric's values, in the order of the log."""
        rows = np.frombuffer(column.rows, np.int64)
        attempts = np.searchsorted(self.begins, rows, "right").astype(np.int64)
        own = np.frombuffer(column.steps, np.float64)
        if self.numbers(column):
            return self.ordinals(rows) if self.ordinal else np.arange(len(rows)), attempts
        numbers = self.steps[np.searchsorted(self.rows, rows)]
        if not self.recounted:
            numbers = np.where(np.isfinite(own) & (np.abs(own) <= _MAX_STEP), np.round(own), numbers)
            if np.sum((np.diff(numbers) < 0) & (np.diff(attempts) == 0)) > 1:
                # Its lines count within an epoch, those of the loss do not: each gets the loss's last step before it.
                before = np.maximum(np.searchsorted(self.main, rows, "right") - 1, 0)
                numbers = self.steps[np.searchsorted(self.rows, self.main[before])]
        steps = numbers.astype(np.int64)
        if len(steps) > 2 and attempts[-1] == attempts[-2] and steps[-1] == 0 < steps[-2]:
            values = column.values
            if not abs(values[-1] - values[0]) < abs(values[-1] - values[-2]):  # else it is of an untrained model
                steps[-1] = int(self.steps.max())  # the last value, logged without a step
        return steps, attempts


def clock_of(
    columns: Mapping[str, Column], main: Column, totals: Iterable[int] = (), starts: Sequence[int] = ()
) -> Clock:
    """Return the clock of a log.

    Steps are those of the log; epochs where it counts nothing else; where it has neither, or the same step everywhere,
    values are numbered in their order. A step that goes back for good begins a new attempt in all metrics; a last value
    written at step 0 does not.

    Args:
        columns: Its metrics.
        main: The metric whose steps count where metrics disagree.
        totals: Numbers behind a step's slash, as in `200/2983 batches`, the most common first.
        starts: Rows at which another training may begin, for values that are numbered.
    """
    rows, places = np.unique(
        np.concatenate([np.frombuffer(column.rows, np.int64) for column in columns.values()]), return_index=True
    )
    steps = np.concatenate([np.frombuffer(column.steps, np.float64) for column in columns.values()])[places]
    epochs = np.concatenate([np.frombuffer(column.epochs, np.float64) for column in columns.values()])[places]
    steps, epochs = (np.where(np.abs(counts) <= _MAX_STEP, counts, np.nan) for counts in (steps, epochs))
    main_rows = np.frombuffer(main.rows, np.int64)
    of_main = np.searchsorted(rows, main_rows)
    counted = _row_steps(Clock(rows, steps, main_rows, rows[:0]), epochs, of_main, totals)
    averaged = counted.unit == "epoch" and not _rarely_repeats(counted.steps[of_main])
    begins = np.empty(0, np.int64)
    if counted.ordinal:
        longest = np.frombuffer(max(columns.values(), key=len).rows, np.int64)
        # A progress bar before the training may be longer, but numbers hardly any of the main values.
        numbers_main = 2 * len(np.unique(np.searchsorted(longest, main_rows))) >= len(main)
        main_rows = longest if len(longest) > len(main) and numbers_main else main_rows
        begins = _announced(main_rows, starts)
        of_main = np.searchsorted(rows, main_rows)
        if np.isfinite(epochs[of_main]).mean() >= 0.5 and np.nanmax(np.abs(epochs)) <= _MAX_STEP / 1e6:
            parts = np.round(1e6 * _filled(epochs))  # epochs go back for good, which are parts of one here
            begins = np.union1d(begins, _attempt_rows(rows, parts, main_rows, parts[of_main]))
    else:
        begins = _attempt_rows(rows, counted.steps, main_rows, counted.steps[of_main])
        if not counted.recounted and not len(begins) and np.isfinite(epochs[of_main]).all():
            begins = _epochs_begin_again(main_rows, epochs[of_main])
            counted = _from_each_begin(counted, begins)
    return replace(counted, main=main_rows, begins=begins, averaged=averaged)


def _epochs_begin_again(main: _Ints, epochs: _Floats) -> _Ints:
    """Return the rows at which epochs begin again from the first one while steps go on, as with several trainings."""
    again = (np.diff(epochs) < 0) & (epochs[1:] == epochs[0])
    return _announced(main, [int(row) for row in main[1:][again]])


def _from_each_begin(clock: Clock, begins: _Ints) -> Clock:
    """Return the clock with steps that begin again in each training, where there are several."""
    if not len(begins):
        return clock
    firsts = clock.steps[np.append(0, np.searchsorted(clock.rows, begins))]
    steps = clock.steps - (firsts - firsts[0])[np.searchsorted(begins, clock.rows, "right")]
    reason = "epochs begin again while steps go on, so steps are counted from the first one of each training"
    return replace(clock, steps=steps, recounted=True, reason=reason)


def _announced(main: _Ints, starts: Sequence[int]) -> _Ints:
    """Return the rows at which the trainings after the first begin; none where most of them have few values."""
    rows = np.asarray(starts[::-1], np.int64)  # of several lines in front of the same value, the last one counts
    places, chosen = np.unique(np.searchsorted(main, rows), return_index=True)
    inside = (places > 0) & (places < len(main))
    lengths = np.diff(places[inside], prepend=0, append=len(main))
    return rows[chosen[inside]] if float(np.median(lengths)) >= _FEWEST_OF_TRAINING else rows[:0]


def _is_constant(steps: _Floats) -> bool:
    """Whether all steps of many values are the same."""
    return len(steps) >= 4 and bool((steps == steps[0]).all())


def _row_steps(clock: Clock, epochs: _Floats, main: _Ints, totals: Iterable[int]) -> Clock:
    """Return the clock with the step of every row: the log's own where it has some, else epochs, else none.

    `main`: places of the main metric's rows among all.
    """
    steps = clock.steps
    own = steps[main][np.isfinite(steps[main])]
    if _MOVES_PER_STEP * np.count_nonzero(np.diff(own)) < np.count_nonzero(np.diff(_filled(epochs)[main])):
        own = own[:0]  # that of something else, such as the last progress bar before the training
    epoch = np.floor(_filled(epochs))
    # Steps are integers, or fractions that stay distinct when they are rounded.
    if (len(own) > 1 and not (own == own[0]).all()) and (
        (own == np.floor(own)).all() or (np.diff(np.round(own)) == 0).mean() <= _MAX_REPEATED_SHARE
    ):
        with_step = main[np.isfinite(steps[main])]
        length = _epoch_length(own, epoch[with_step], totals) if np.isfinite(epochs).any() else 0
        if not length and np.isfinite(epochs).any():
            begun = _where_it_moved(steps)
            length = _epoch_length(own, epoch[begun][with_step], totals)
            epoch = epoch[begun] if length else epoch
        if length and (np.abs(epoch).max() + 1) * length <= _MAX_STEP:
            reason = f"steps restart in each epoch of {length:,} steps, so a step is epoch x {length:,} + step"
            return replace(clock, steps=_global_steps(steps, epoch, with_step, length), recounted=True, reason=reason)
        return replace(clock, steps=np.round(_filled(steps)))
    of_main = _filled(epochs)[main] if np.isfinite(epochs).any() else np.empty(0)
    if len(of_main) > 1 and np.ptp(np.floor(of_main)) > 0 and _may_be_steps(of_main):
        reason = "the step does not change, so epochs are used as steps" if len(own) > 1 else ""
        return replace(clock, steps=epoch, recounted=True, reason=reason, unit="epoch")
    problem = "the log has no steps"
    if len(own) > 1:
        problem = f"every step is {own[0]:g}" if (own == own[0]).all() else "steps are fractions"
    reason = f"{problem}, so values are numbered in their order"
    return replace(clock, steps=np.zeros(len(steps)), ordinal=len(own) > 1 or len(main) > 1, reason=reason)


def _where_it_moved(steps: _Floats) -> _Ints:
    """Return for each row the first row of its step: what is logged after an epoch may name the next one already."""
    held = _filled(steps)
    moved = (np.diff(held, prepend=np.nan) != 0) | ~np.maximum.accumulate(np.isfinite(steps))
    moved[int(np.argmax(np.isfinite(steps)))] = True  # what a banner says is no part of the first step
    return np.maximum.accumulate(np.where(moved, np.arange(len(held)), 0))


def _global_steps(steps: _Floats, epoch: _Floats, main: _Ints, epoch_length: int) -> _Floats:
    """Return steps of the whole training; a metric with a count of its own, as in validation, gets the main one's."""
    counted = _filled(np.where(np.isfinite(steps), epoch * epoch_length + steps, np.nan))
    rows = np.arange(len(counted))
    before = main[np.maximum(np.searchsorted(main, rows, "right") - 1, 0)]
    return np.where(before <= rows, np.maximum(counted, counted[before]), counted)


def _may_be_steps(epochs: _Floats) -> bool:
    """Whether epochs can be used as steps: rarely repeated, or each as often as the others, a few times at most."""
    if _rarely_repeats(np.floor(epochs)):
        return True
    if (epochs != np.floor(epochs)).any():
        return False
    lengths = np.diff(np.flatnonzero(np.diff(epochs, prepend=np.nan, append=np.nan) != 0))
    usual = int(np.median(lengths))
    return usual <= _MAX_PER_EPOCH and float((lengths == usual).mean()) >= 1 - _MAX_REPEATED_SHARE


def _rarely_repeats(steps: _Floats) -> bool:
    return len(steps) < 2 or float((np.diff(steps) == 0).mean()) <= _MAX_REPEATED_SHARE


def _epoch_length(steps: _Floats, epochs: _Floats, totals: Iterable[int]) -> int:
    """Return the number of steps in an epoch, if they restart in each; else 0.

    The log's own total, where it has one that is large enough; else an estimate from the last step and the distance
    between steps: 0, 100, … 900 are epochs of 1,000 steps, and 0, 100, … 900, 937 are epochs of 938.
    """
    ahead = np.diff(steps)
    back = ahead < 0
    if not back.any():
        return 0
    epochs_on = np.diff(np.floor(epochs))
    next_epoch = epochs_on > 0
    begins = back & next_epoch
    first, last = int(steps.min()), int(steps.max())
    total = next((total for total in totals if total >= last), 0)
    moves = np.diff(np.floor(epochs) * total + steps)
    if total and moves.min() > 0 and (moves == np.median(moves)).mean() >= 1 - _MAX_REPEATED_SHARE:
        return total  # also where several epochs lie between two values
    if begins.sum() < 0.8 * max(1, back.sum()) or begins.sum() < 0.5 * next_epoch.sum():
        return 0
    if begins.sum() == 1 and epochs_on[begins][0] > 1:  # another run, and a number that was taken for an epoch
        return 0
    if total:
        return total if first > 0 or total > last else total + 1
    onward = ahead[ahead > 0]
    usual = float(np.median(onward)) if len(onward) else 1.0
    to_last = ahead[np.flatnonzero(steps[1:] == last)]
    even = bool(len(to_last)) and float(to_last[0]) == usual
    return last - first + int(usual) if even and first in (0, 1, usual) else last + (first == 0)


def _filled(values: _Floats) -> _Floats:
    """Fill gaps with the last finite value, at the beginning with the first."""
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(len(values))
    places = np.maximum.accumulate(np.where(finite, np.arange(len(values)), -1))
    filled: _Floats = values[np.where(places < 0, int(np.argmax(finite)), places)]
    return filled


def _attempt_rows(rows: _Ints, steps: _Floats, main_rows: _Ints, main_steps: _Floats) -> _Ints:
    """Return the rows at which the step goes back for good."""
    attempts = number_attempts(main_steps.astype(np.int64))
    begins = []
    for place in np.flatnonzero(np.diff(attempts) > 0):
        before, first = main_rows[place], main_rows[place + 1]
        between = np.flatnonzero((rows > before) & (rows < first) & (steps <= main_steps[place + 1]))
        begins.append(int(rows[between[0]]) if len(between) else int(first))
    return np.asarray(begins, np.int64)
