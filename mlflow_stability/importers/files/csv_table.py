"""Reads tables of values with a header: Lightning, Ultralytics, Keras, baselines, and what people write themselves.

In: a text file whose first line names the columns. Out: a `RunHistory`, or one for each run of a chart that W&B
exported. Guarantees: a blank cell was not logged, `nan` was; a file is read in parts, so that its size does not matter;
headers that are repeated inside, because a run was appended, are no values; headers may be padded, quoted, lack a name
or have one twice; cells are separated by commas, semicolons, tabs or bars, and decimals by points or commas.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_stability.importers.assemble.data_splits import held_out_said, is_split, measured_on
from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.assemble.log_content import LogContent
from mlflow_stability.importers.assemble.long_format import name_and_value
from mlflow_stability.importers.assemble.step_names import (
    AGES_AGO,
    counts_within_epochs,
    is_epoch,
    is_time,
    per_second,
    step_rank,
)
from mlflow_stability.importers.decode import lines_of, text_of
from mlflow_stability.importers.files.csv_rows import rows_of
from mlflow_stability.importers.files.ray_result import chosen
from mlflow_stability.importers.files.wandb_chart import Chart, chart_of
from mlflow_stability.importers.formats.csv_header import NOT_LOGGED, cells_of, decimal_of, is_number, names_of
from mlflow_stability.vocabulary.run import RunHistory

_ClockColumns = tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class _Cells:
    """How the cells of a table are written."""

    separator: str
    decimal: str
    """What sets decimals apart."""


PART = 100_000
"""How many lines are parsed at once."""
_CHART = "wandb_chart"
_ONE_SCALAR = ["Wall time", "Step", "Value"]  # what TensorBoard's download of one curve is headed with


def read_csv(
    path: Path, encoding: str, separator: str, names: list[str] | None = None, *, made_up: bool = False
) -> list[RunHistory]:
    """The run that a table tells of; several only where a chart was exported that shows several.

    ``names``: those of its columns, where its first row does not name them; ``made_up``: nothing names them.
    """
    content = LogContent()
    clocks: dict[tuple[str, ...], _ClockColumns] = {}
    with text_of(path, encoding) as text:
        lines = rows_of(lines_of(text), separator)
        header = names_of(cells_of(next(lines, (0, ""))[1], separator)) if names is None else names
        first, every = 1, True
        while part := list(islice(lines, PART)):
            for header, body in _bodies(part, header, separator):  # noqa: B020 a new header holds from here on
                read = _add(content, header, [line for _, line in body], separator, first, clocks)
                every = every and read == len(body)
                if every:
                    rows = np.arange(first, first + read, dtype=np.int64)
                    content.at_lines(rows, np.array([at for at, _ in body], np.int64))
                first += read
    if not every:
        content.forget_lines()
    if header == _ONE_SCALAR and "Value" in content.columns:
        content.columns = {path.stem.rpartition("tag-")[2]: content.columns["Value"]}
    if made_up:
        _name_the_loss(content)
    chart = chart_of(header)
    return [history_of(content, path, _format(header))] if chart is None else _of_chart(content, chart, path)


def _of_chart(content: LogContent, chart: Chart, path: Path) -> list[RunHistory]:
    """Each run of a chart with its own metrics: added up, or as parts of one loss, they would mean nothing."""
    of_runs = {name for columns in chart.runs.values() for name in columns}
    shared = {name: column for name, column in content.columns.items() if name not in of_runs | chart.bounds}
    parts = {}
    for run, names in chart.runs.items():
        own = {metric: content.columns[name] for name, metric in names.items() if name in content.columns}
        if any(len(column) > 1 for column in own.values()):
            parts[run] = replace(
                content, columns=own | {name: each for name, each in shared.items() if name not in own}
            )
    if len(parts) < 2:
        return [history_of(each, path, _CHART) for each in parts.values() or [content]]
    note = f"The file is a W&B chart of {len(parts)} runs; each is judged by itself."
    told = {run: history_of(replace(each, notes=[note]), path, _CHART) for run, each in parts.items()}
    sources = dict(zip(told, names_of([run.replace("/", "_") for run in told]), strict=True))
    return [replace(each, source=str(path / sources[run]), name=run) for run, each in told.items()]


def _name_the_loss(content: LogContent) -> None:
    """Take the only column beside the step of a table without names for the loss, unless it is a score that rises."""
    said = "The table has no header: its first column counts steps, and"
    if len(content.columns) == 1:
        ((name, column),) = content.columns.items()
        values = np.array(column.values)
        quarter = max(1, len(values) // 4)
        score = bool(((values >= 0) & (values <= 1)).all()) and np.median(values[-quarter:]) > np.median(
            values[:quarter]
        )
        if not score:
            content.columns = {"loss": column}
            content.notes.append(f"{said} {name} is taken for the loss. A first line such as `step,accuracy` names it.")
            return
    content.notes.append(f"{said} the others are numbered. Name them in a first line, or add --loss 'column 2'.")


def _bodies(
    part: list[tuple[int, str]], header: list[str], separator: str
) -> Iterator[tuple[list[str], list[tuple[int, str]]]]:
    """The numbered lines of a part beneath the header that holds for them."""
    letters = header[0][:1]
    body: list[tuple[int, str]] = []
    for at, line in part:
        if letters and line.lstrip(' "').startswith(letters) and not any(map(is_number, cells_of(line, separator))):
            cells = cells_of(line, separator)
            if len(cells) > 1 and all(cells):
                yield header, body
                header, body = names_of(cells), []
                continue
        body.append((at, line))
    yield header, body


def _add(
    content: LogContent,
    header: list[str],
    body: list[str],
    separator: str,
    first: int,
    clocks: dict[tuple[str, ...], _ClockColumns],
) -> int:
    """Add the values of a part; give the number of its rows."""
    if not body:
        return 0
    written = _Cells(separator, decimal_of(body, separator))
    table = _parsed(body, header, written)
    kept = chosen(tuple(header))
    numbers = {name: _numbers(table[name], body, header, written) for name in table.columns if name in kept}
    rows = np.arange(first, first + len(table), dtype=np.int64)
    step, epoch, time = clocks.setdefault(tuple(header), _clock_columns(numbers))
    unknown = np.full(len(table), np.nan)
    steps, epochs = (numbers[name][0] if name else unknown for name in (step, epoch))
    times = _seconds(numbers[time][0]) if time else np.zeros(len(table))
    one = name_and_value(tuple(_texts(table)), tuple(name for name, (_, logged) in numbers.items() if logged.any()))
    for word, here in _by_data(table):
        counted = np.where(here, np.nan, steps) if word and epoch and step and counts_within_epochs(step) else steps
        for name, (values, logged) in numbers.items():
            if name in (step, time) or not logged.any() or (one is not None and name != one[1]):
                continue
            told = np.flatnonzero(logged & here)
            for metric, those in [(name, told)] if one is None else _by_name(table[one[0]], told):
                content.add_column(
                    measured_on(word, metric), rows[those], values[those], counted[those], epochs[those], times[those]
                )
    return len(table)


def _seconds(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times in seconds since 1970; 0 where there is none."""
    known = times[np.isfinite(times)]
    return np.nan_to_num(times / per_second(float(known.max())), posinf=0.0) if len(known) else np.zeros(len(times))


def _by_data(table: pd.DataFrame) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The rows of each part of the data: the word for one that was held out, none for all others."""
    words = np.full(len(table), "", dtype=object)
    for name in filter(is_split, _texts(table)):
        said = table[name].fillna("").astype(str).map(partial(held_out_said, name)).to_numpy(object)
        words = np.where(words == "", said, words)
    for word in dict.fromkeys(words.tolist()):
        yield word, words == word


def _by_name(names: pd.Series, told: NDArray[np.int64]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """The rows of each metric of a table in which every row names its own."""
    stripped = names.iloc[told].astype(str).str.strip()
    for metric, places in stripped.groupby(stripped.to_numpy(), sort=False).indices.items():
        yield str(metric), told[places]


def _texts(table: pd.DataFrame) -> list[str]:
    return [str(name) for name in table.columns if table[name].dtype.kind not in "iufb"]


def _parsed(body: list[str], header: list[str], written: _Cells, **how: object) -> pd.DataFrame:
    text = io.StringIO("\n".join(body))
    names = list(header)
    return pd.read_csv(  # type: ignore[call-overload,no-any-return]
        text,
        sep=written.separator,
        names=names,
        header=None,
        usecols=how.pop("usecols", list(range(len(names)))),
        skipinitialspace=True,
        keep_default_na=False,
        na_values=NOT_LOGGED,
        on_bad_lines="skip",
        decimal=written.decimal,
        low_memory=False,
        index_col=False,
        **how,
    )


def _numbers(
    column: pd.Series, body: list[str], header: list[str], written: _Cells
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values of a column, and which of its cells hold one."""
    if column.dtype.kind in "iufb":
        values = column.to_numpy(np.float64)
        if not np.isnan(values).any():
            return values, np.ones(len(values), bool)
        place = header.index(str(column.name))
        texts = _parsed(body, header, written, usecols=[place], dtype=str)[column.name]
        return values, ~np.isnan(values) | _says_nan(texts)
    cells = column.astype(str).str.strip()
    if written.decimal == ",":
        cells = cells.str.replace(",", ".")
    values = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64)
    return values, ~np.isnan(values) | _says_nan(column)


def _says_nan(texts: pd.Series) -> NDArray[np.bool_]:
    said: NDArray[np.bool_] = texts.astype(str).str.strip().str.lower().isin(["nan", "-nan", "+nan"]).to_numpy(bool)
    return said & texts.notna().to_numpy(bool)


def _clock_columns(numbers: dict[str, tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> _ClockColumns:
    """The columns of step, epoch and time, as the first part of a table shows them."""
    moving = [
        name
        for name, (values, logged) in numbers.items()
        if logged.any() and (len(values) == 1 or len(np.unique(values[logged])) > 1)
    ]
    whole = [name for name in moving if step_rank(name) >= 0 and numbers[name][1].mean() > 0.5]
    step = min(whole, key=step_rank, default=None)
    epoch = next((name for name in numbers if is_epoch(name) and numbers[name][1].any()), None)
    time = next((name for name in moving if is_time(name) and np.nanmin(numbers[name][0]) > AGES_AGO), None)
    return step, epoch, time


def _format(header: list[str]) -> str:
    names = set(header)
    if "epoch" in names and any(name.startswith(("metrics/", "lr/pg")) for name in names):
        return "ultralytics_csv"
    if {"epoch", "step"} <= names:
        return "lightning_csv"
    if "epoch" not in {name.lower() for name in names}:
        return "progress_csv"
    return "csv"
