"""Read tables of numbers with pandas: Lightning, Ultralytics, Keras, baselines, and what people write themselves.

A blank cell was not logged, `nan` was. Files are read in parts, so that their size does not matter; headers that are
repeated inside, because a run was appended, are no values. A chart exported from W&B gives one run for each in it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.csv_rows import (
    NO_VALUE,
    cells_of,
    column_names,
    decimal_mark,
    is_number,
    numbers_columns,
    rows_of,
)
from mlflow_stability.importers.field_names import (
    MIN_ABSOLUTE_TIME,
    counts_within_epochs,
    held_out_word,
    is_epoch,
    is_split_field,
    is_time,
    long_format,
    metric_names,
    step_name,
    step_rank,
    units_per_second,
    with_split,
)
from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.log_content import LogContent
from mlflow_stability.importers.log_text import lines_of, open_text, printable_path
from mlflow_stability.vocabulary.run import RunHistory

PART = 100_000  # lines that are parsed at once
MAX_COLUMNS = 4000
"""Columns of a table; a damaged file may look like one of 10,000, each of which would take a millisecond."""
_TENSORBOARD_HEADER = ["Wall time", "Step", "Value"]  # of the download of one curve
_CHART_COLUMN = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<copy>| \(\d+\))", re.DOTALL)
"""How W&B heads a column; a second run of the same name has a number at the end."""

_ClockColumns = tuple[str | None, str | None, str | None]  # the columns of step, epoch and time
_Column = tuple[NDArray[np.float64], NDArray[np.bool_]]  # the values of a column, and which of its cells hold one


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of a table under one header."""

    header: list[str]
    lines: list[str]
    separator: str
    decimal: str  # what separates decimals: a point or a comma

    def numbers(self, column: pd.Series) -> _Column:
        if column.dtype.kind in "iufb":
            values = column.to_numpy(np.float64)
            if not np.isnan(values).any():
                return values, np.ones(len(values), bool)
            # Only the text tells `nan` from a blank cell.
            texts = self.table([self.header.index(str(column.name))], dtype=str)[column.name]
            return values, ~np.isnan(values) | _is_nan_text(texts)
        cells = column.astype(str).str.strip()
        if self.decimal == ",":
            cells = cells.str.replace(",", ".")
        values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
        return values, ~np.isnan(values) | _is_nan_text(column)

    def table(self, columns: list[int] | None = None, dtype: type | None = None) -> pd.DataFrame:
        """Return the cells as pandas reads them, by default those of all columns."""
        return pd.read_csv(
            io.StringIO("\n".join(self.lines)),
            sep=self.separator,
            names=list(self.header),
            header=None,
            usecols=list(range(len(self.header))) if columns is None else columns,
            dtype=dtype,
            skipinitialspace=True,
            keep_default_na=False,
            na_values=NO_VALUE,
            on_bad_lines="skip",
            decimal=self.decimal,
            low_memory=False,
            index_col=False,
        )


def read_csv(
    path: Path, encoding: str, separator: str, names: list[str] | None = None, *, made_up: bool = False
) -> list[RunHistory]:
    """Return the run in a table; several only for a chart that shows several.

    Args:
        names: Those of its columns, where its first row does not name them.
        made_up: Nothing in the file names the columns.
    """
    content = LogContent()
    clocks: dict[tuple[str, ...], _ClockColumns] = {}
    with open_text(path, encoding) as text:
        rows = rows_of(lines_of(text), separator)
        header = column_names(cells_of(next(rows, (0, ""))[1], separator)) if names is None else names
        if made_up:
            first = next(rows, (0, ""))
            rows = rows if numbers_columns(cells_of(first[1], separator)) else chain([first], rows)
        content.rows_are_lines = True
        while block := list(islice(rows, PART)):
            for header, body in _bodies(block, header, separator):  # noqa: B020 a new header holds from here on
                if len(header) > MAX_COLUMNS:
                    raise UnreadableLogError(
                        f"{printable_path(path)} is a table of {len(header):,} columns; up to {MAX_COLUMNS:,} are read."
                    )
                lines = [line for _, line in body]
                part = _Part(header, lines, separator, decimal_mark(lines, separator))
                _add(content, part, np.array([line for line, _ in body], np.int64), clocks)
    if header == _TENSORBOARD_HEADER and "Value" in content.columns:
        content.columns = {path.stem.rpartition("tag-")[2]: content.columns["Value"]}
    if made_up:
        _name_the_loss(content, header)
    runs, bounds = _chart_columns(header)
    if runs:
        return _chart_runs(content, runs, bounds, path)
    log_format = "csv" if "epoch" in map(str.lower, header) else "progress_csv"
    if "epoch" in header and any(name.startswith(("metrics/", "lr/pg")) for name in header):
        log_format = "ultralytics_csv"
    elif {"epoch", "step"} <= set(header):
        log_format = "lightning_csv"
    return [history_of(content, path, log_format)]


def _bodies(
    block: list[tuple[int, str]], header: list[str], separator: str
) -> Iterator[tuple[list[str], list[tuple[int, str]]]]:
    """Yield the numbered lines of a block beneath the header that holds for them."""
    first_letter = header[0][:1]
    body: list[tuple[int, str]] = []
    for number, line in block:
        if first_letter and line.lstrip(' "').startswith(first_letter):
            cells = cells_of(line, separator)
            if len(cells) > 1 and all(cells) and not any(map(is_number, cells)):
                yield header, body
                header, body = column_names(cells), []
                continue
        body.append((number, line))
    yield header, body


def _add(
    content: LogContent, part: _Part, rows: NDArray[np.int64], clocks: dict[tuple[str, ...], _ClockColumns]
) -> None:
    """Add the values of a part whose lines have these numbers."""
    if not part.lines:
        return
    table = part.table()
    wanted = metric_names(tuple(part.header))
    numbers = {name: part.numbers(table[name]) for name in table.columns if name in wanted}
    if len(table) < len(rows):  # pandas has skipped rows that are too long, and does not say which
        content.rows_are_lines = False
        rows = rows[: len(table)]
    step, epoch, time = clocks.setdefault(tuple(part.header), _clock_columns(numbers))
    unknown = np.full(len(table), np.nan)
    steps, epochs = (numbers[name][0] if name else unknown for name in (step, epoch))
    times = np.zeros(len(table))  # in seconds since 1970; 0 for a blank cell
    if time and np.isfinite(numbers[time][0]).any():
        newest = float(numbers[time][0][np.isfinite(numbers[time][0])].max())
        times = np.nan_to_num(numbers[time][0] / units_per_second(newest), posinf=0.0)
    long = long_format(tuple(_texts(table)), tuple(name for name, (_, logged) in numbers.items() if logged.any()))
    compared = "" if step or epoch or time or long is not None else _compared(table)
    for split, in_split in _splits(table):
        restarts = split and epoch and step and counts_within_epochs(step)
        counted = np.where(in_split, np.nan, steps) if restarts else steps
        for name, (values, logged) in numbers.items():
            if name in (step, time) or not logged.any() or (long is not None and name != long[1]):
                continue
            places = np.flatnonzero(logged & in_split)
            metrics = {name: places}
            if long is not None:  # rows name their metric
                stripped = table[long[0]].iloc[places].astype(str).str.strip()
                groups = stripped.groupby(stripped.to_numpy(), sort=False).indices
                metrics = {str(metric): places[own] for metric, own in groups.items()}
            for metric, own in metrics.items():
                full_name = with_split(split, metric)
                content.add_column(full_name, rows[own], values[own], counted[own], epochs[own], times[own])
                if compared:
                    content.doubts[full_name] = f"rows have no step and are of each {compared!r} in turn"


def _compared(table: pd.DataFrame) -> str:
    """Return the column of names that come again and again, as in a table that compares settings; else nothing."""
    for name in _texts(table):
        texts = table[name].fillna("").astype(str).str.strip()
        changes = int((texts != texts.shift()).sum()) - 1
        if texts.str.contains(r"[^\W\d_]").all() and changes >= 2 * texts.nunique() > 2 and not is_split_field(name):
            return name
    return ""


def _clock_columns(numbers: dict[str, _Column]) -> _ClockColumns:
    """Find step, epoch and time in the first part of a table."""
    moving = [
        name
        for name, (values, logged) in numbers.items()
        if logged.any() and (len(values) == 1 or len(np.unique(values[logged])) > 1)
    ]
    filled = [name for name in moving if step_rank(name) >= 0 and numbers[name][1].mean() > 0.5]
    step = min(filled, key=step_rank, default=None)
    epoch = next((name for name in numbers if is_epoch(name) and numbers[name][1].any()), None)
    time = next((name for name in moving if is_time(name) and np.nanmin(numbers[name][0]) > MIN_ABSOLUTE_TIME), None)
    return step, epoch, time


def _splits(table: pd.DataFrame) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the rows of each held-out split, and those of all others under an empty name."""
    words = np.full(len(table), "", dtype=object)
    for name in filter(is_split_field, _texts(table)):
        own = table[name].fillna("").astype(str).map(partial(held_out_word, name)).to_numpy(object)
        words = np.where(words == "", own, words)
    for word in dict.fromkeys(words.tolist()):
        yield word, words == word


def _texts(table: pd.DataFrame) -> list[str]:
    return [str(name) for name in table.columns if table[name].dtype.kind not in "iufb"]


def _is_nan_text(texts: pd.Series) -> NDArray[np.bool_]:
    is_nan: NDArray[np.bool_] = texts.astype(str).str.strip().str.lower().isin(["nan", "-nan", "+nan"]).to_numpy(bool)
    return is_nan & texts.notna().to_numpy(bool)


def _name_the_loss(content: LogContent, header: Sequence[str]) -> None:
    """Take the only column beside the step of a table without names for the loss, unless it is a score that rises."""
    if len(header) == 1:
        content.notes.append("The file has one number a line, taken for the loss that its name says.")
        return
    if step_name(header[:1]) is None:
        content.notes.append("The table has no header: its columns are taken for the losses that the file's name says.")
        return
    note = "The table has no header: its first column counts steps, and"
    if len(content.columns) == 1:
        ((name, column),) = content.columns.items()
        values = np.array(column.values)
        quarter = max(1, len(values) // 4)
        rises = np.median(values[-quarter:]) > np.median(values[:quarter])
        if not (rises and ((values >= 0) & (values <= 1)).all()):
            content.columns = {"loss": column}
            content.notes.append(f"{note} {name} is taken for the loss. A first line such as `step,accuracy` names it.")
            return
    content.notes.append(f"{note} the others are numbered. Name them in a first line, or add --loss 'column 2'.")


def _chart_columns(names: Sequence[str]) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Read the header of a chart exported from W&B: `"Step","run - loss","run - loss__MIN","run - loss__MAX"`.

    Returns the metric of each column by run, and the columns of lowest and highest values, which every column of a
    run has beside it.
    """
    runs: dict[str, dict[str, str]] = {}
    bounds: set[str] = set()
    columns = set(names)
    for name in names:
        match = _CHART_COLUMN.fullmatch(name)
        if match is not None:
            run, metric, copy = match.groups()
            own = {f"{run} - {metric}{bound}{copy}" for bound in ("__MIN", "__MAX")}
            if own <= columns:
                runs.setdefault(run + copy, {})[name] = metric
                bounds |= own
    return runs, bounds


def _chart_runs(content: LogContent, runs: dict[str, dict[str, str]], bounds: set[str], path: Path) -> list[RunHistory]:
    """Return each run of a chart with its own metrics: as parts of one loss they would mean nothing."""
    own = {name for columns in runs.values() for name in columns}
    shared = {name: column for name, column in content.columns.items() if name not in own | bounds}
    parts = {}
    for run, names in runs.items():
        columns = {metric: content.columns[name] for name, metric in names.items() if name in content.columns}
        if any(len(column) > 1 for column in columns.values()):
            parts[run] = replace(content, columns=columns | {k: v for k, v in shared.items() if k not in columns})
    if len(parts) < 2:
        return [history_of(part, path, "wandb_chart") for part in parts.values() or [content]]
    note = f"The file is a W&B chart of {len(parts)} runs; each is judged by itself."
    sources = column_names([run.replace("/", "_") for run in parts])
    return [
        replace(history_of(replace(part, notes=[note]), path, "wandb_chart"), source=str(path / source), name=run)
        for (run, part), source in zip(parts.items(), sources, strict=True)
    ]
