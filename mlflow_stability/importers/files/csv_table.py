"""Reads tables of values with a header: Lightning, Ultralytics, Keras, baselines, and what people write themselves.

In: a text file whose first line names the columns. Out: a `RunHistory`. Guarantees: a blank cell was not logged, `nan`
was; a file is read in parts, so that its size does not matter; headers that are repeated inside, because a run was
appended, are no values; headers may be padded, quoted, lack a name or have one twice; cells are separated by commas,
semicolons, tabs or bars.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.assemble.log_content import LogContent
from mlflow_stability.importers.assemble.long_format import name_and_value
from mlflow_stability.importers.assemble.step_names import is_epoch, is_time, step_rank
from mlflow_stability.importers.decode import lines_of, text_of
from mlflow_stability.importers.files.ray_result import chosen
from mlflow_stability.importers.formats.csv_header import cells_of, is_number, names_of
from mlflow_stability.vocabulary.run import RunHistory

_ClockColumns = tuple[str | None, str | None, str | None]

PART = 100_000
"""How many lines are parsed at once."""
_NOT_LOGGED = ["", "None", "none", "null", "NULL", "NA", "N/A", "n/a", "-", "--", "<NA>"]
_ONE_SCALAR = ["Wall time", "Step", "Value"]  # what TensorBoard's download of one curve is headed with


def read_csv(path: Path, encoding: str, separator: str, names: list[str] | None = None) -> RunHistory:
    """The run that a table tells of; ``names``: those of its columns, where its first line does not name them."""
    content = LogContent()
    clocks: dict[tuple[str, ...], _ClockColumns] = {}
    with text_of(path, encoding) as text:
        lines = ((at, _closed(line)) for at, line in enumerate(lines_of(text), 1) if _is_row(line))
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
    if names is not None:
        _name_the_loss(content)
    return history_of(content, path, _format(header))


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


def _is_row(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _closed(line: str) -> str:
    """The line without its quotes where one of them is never closed: it would swallow the lines after it."""
    return line.replace('"', "") if '"' in line and line.count('"') % 2 else line


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
    table = _parsed(body, header, separator)
    kept = chosen(tuple(header))
    numbers = {name: _numbers(table[name], body, header, separator) for name in table.columns if name in kept}
    rows = np.arange(first, first + len(table), dtype=np.int64)
    step, epoch, time = clocks.setdefault(tuple(header), _clock_columns(numbers))
    unknown = np.full(len(table), np.nan)
    steps, epochs = (numbers[name][0] if name else unknown for name in (step, epoch))
    times = np.nan_to_num(numbers[time][0]) if time else np.zeros(len(table))
    one = name_and_value(tuple(_texts(table)), tuple(name for name, (_, logged) in numbers.items() if logged.any()))
    if one is not None:
        values, logged = numbers[one[1]]
        for metric, place in table.groupby(table[one[0]].astype(str).str.strip(), sort=False).indices.items():
            told = place[logged[place]]
            content.add_column(str(metric), rows[told], values[told], steps[told], epochs[told], times[told])
        return len(table)
    for name, (values, logged) in numbers.items():
        if name not in (step, time) and logged.any():
            content.add_column(name, rows[logged], values[logged], steps[logged], epochs[logged], times[logged])
    return len(table)


def _texts(table: pd.DataFrame) -> list[str]:
    return [str(name) for name in table.columns if table[name].dtype.kind not in "iufb"]


def _parsed(body: list[str], header: list[str], separator: str, **how: object) -> pd.DataFrame:
    text = io.StringIO("\n".join(body))
    decimal = "," if separator == ";" and not any("." in line for line in body[:50]) else "."
    names = list(header)
    return pd.read_csv(  # type: ignore[call-overload,no-any-return]
        text,
        sep=separator,
        names=names,
        header=None,
        usecols=how.pop("usecols", list(range(len(names)))),
        skipinitialspace=True,
        keep_default_na=False,
        na_values=_NOT_LOGGED,
        on_bad_lines="skip",
        decimal=decimal,
        low_memory=False,
        index_col=False,
        **how,
    )


def _numbers(
    column: pd.Series, body: list[str], header: list[str], separator: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values of a column, and which of its cells hold one."""
    if column.dtype.kind in "iufb":
        values = column.to_numpy(np.float64)
        if not np.isnan(values).any():
            return values, np.ones(len(values), bool)
        place = header.index(str(column.name))
        texts = _parsed(body, header, separator, usecols=[place], dtype=str)[column.name]
        return values, ~np.isnan(values) | _says_nan(texts)
    values = pd.to_numeric(column.astype(str).str.strip(), errors="coerce").to_numpy(np.float64)
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
    time = next((name for name in moving if is_time(name) and np.nanmin(numbers[name][0]) > 1e8), None)
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
