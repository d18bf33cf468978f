"""Read Jupyter's notebooks of any version: what their cells printed and showed while something was trained.

Progress bars count as they were in the end, unless that leaves no curve. Tables that were shown (Hugging Face's
trainer, fastai) and a history that was printed or displayed are read where they have more values than the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.formats.json_document import Document, document_history, load_document
from mlflow_stability.importers.formats.text_log import TextLog
from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.json_rows import parse_value
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.importers.log_text import MAX_LINE, all_states, clean_line, last_states, printable_path
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

MIN_POINTS = 8  # progress bars that leave fewer points in the end are read in all their states
MAX_PAGE = 5_000_000  # a longer HTML page is a plot
_LOSSES = ("loss", "val_loss")
_TABLE = re.compile(r"<table\b", re.IGNORECASE)
_TABLE_END = re.compile(r"</table\b", re.IGNORECASE)
_ROW = re.compile(r"<tr\b[^<>]*>", re.IGNORECASE)
_CELL = re.compile(r"<t[hd]\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")


def read_notebook(log_file: LogFile) -> list[RunHistory] | None:
    """Return the trainings in a notebook, in the order of their cells; None for another file."""
    path, text = log_file.path, log_file.text.lstrip("\ufeff \t\r\n")
    named = path.suffix.lower() == ".ipynb" or '"cell_type"' in text or '"nbformat"' in text
    if log_file.encoding is None or not text.startswith("{") or not named:
        return None
    document = load_document(path, log_file.encoding)
    if document is None or not isinstance(document.value, Mapping) or not {"cells", "worksheets"} & set(document.value):
        return None
    trained = ((number, _training(outputs, path)) for number, outputs in _cells(document.value))
    runs = [(number, run) for number, run in trained if run is not None]
    runs = [item for item in runs if _has_curve(item[1], _LOSSES)] or [item for item in runs if _has_curve(item[1])]
    if not runs:
        raise UnreadableLogError(
            f"{printable_path(path)} is a notebook without training output: no cell has a metric with two "
            "or more values. If it was run without saving its output, run it again and save it."
        )
    if document.truncated:
        note = "The notebook is truncated: its last cells are missing."
        runs = [(number, replace(run, notes=(*run.notes, note))) for number, run in runs]
    if len(runs) == 1:
        return [runs[0][1]]
    return [
        replace(run, source=str(path / f"cell {number}"), name=f"{path.name}, cell {number}") for number, run in runs
    ]


def _cells(document: Mapping[str, object]) -> Iterator[tuple[int, Sequence[Mapping[str, object]]]]:
    """Yield the outputs of each cell, with its number in the notebook."""
    sheets = [document, *(sheet for sheet in _list(document.get("worksheets")) if isinstance(sheet, Mapping))]
    cells = [cell for sheet in sheets for cell in _list(sheet.get("cells"))]
    for number, cell in enumerate(cells, start=1):
        outputs = _list(cell.get("outputs")) if isinstance(cell, Mapping) else []
        shown = [output for output in outputs if isinstance(output, Mapping)]
        if shown:
            yield number, shown


def _shown(outputs: Sequence[Mapping[str, object]]) -> tuple[str, list[str], list[object]]:
    """Return what a cell printed, its HTML with tables, and the dictionaries and lists that it showed or printed."""
    printed, pages = [], []
    values: list[object] = []
    for output in outputs:
        data = output.get("data")
        data = data if isinstance(data, Mapping) else output
        page, text = _text(data.get("text/html", data.get("html"))), _text(data.get("text/plain", output.get("text")))
        if "ename" in output:
            text = f"\n{_text(output.get('ename'))}: {_text(output.get('evalue'))}\n"
        if "<table" in page.lower():
            pages.append(page)
            continue
        printed.append(text)
        if text.lstrip().startswith(("{", "[{", "defaultdict(")):
            value = parse_value(text.strip())
            values.extend([value] if isinstance(value, dict | list) else [])
    return "".join(printed), pages, values


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return a notebook's text, which may be a list of its lines."""
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""


def _training(outputs: Sequence[Mapping[str, object]], path: Path) -> RunHistory | None:
    """Return the training that a cell shows; of several forms the one with most values of the loss."""
    printed, pages, shown = _shown(outputs)
    text = _text_run(last_states(printed), path)
    if _loss_points(text) < MIN_POINTS and ("\r" in printed or "\b" in printed):
        text = _longest([text, _text_run(all_states(printed), path)])
    rows: list[Mapping[str, object]] = []
    for table in (table for page in pages for table in _tables(page)):
        names = {name for row in table for name in row}
        if any(meaning.quantity in _LOSSES for meaning in metric_meanings(names).values()):
            rows.extend(table)
    run = _longest([text, *(_value_run(value, path) for value in (rows, *shown))])
    if run is not None and text is not None and run is not text:
        run = replace(run, outcome=text.outcome, outcome_detail=text.outcome_detail, reported=text.reported)
    return run


def _longest(runs: Sequence[RunHistory | None]) -> RunHistory | None:
    return max((run for run in runs if run is not None), key=_loss_points, default=None)


def _loss_points(run: RunHistory | None) -> int:
    if run is None:
        return 0
    return sum(len(metric.series) for metric in run.metrics if metric.meaning.quantity in _LOSSES)


def _has_curve(run: RunHistory, quantities: Sequence[str] = ()) -> bool:
    """Whether a run has a curve of these quantities, or of any that is known."""
    curves = [metric.meaning for metric in run.metrics if len(metric.series) > 1]
    return any(curve.quantity in quantities if quantities else curve.is_known for curve in curves)


def _text_run(lines: Iterator[str], path: Path) -> RunHistory | None:
    log = TextLog(of_a_file=False)
    for line in lines:
        log.take(clean_line(line[:MAX_LINE]))
    content, _ = log.finish()
    try:
        return history_of(content, path, "notebook")
    except UnreadableLogError:
        return None


def _value_run(value: object, path: Path) -> RunHistory | None:
    try:
        return document_history(path, Document(value), "notebook")
    except UnreadableLogError:
        return None


def _tables(page: str) -> Iterator[list[dict[str, str]]]:
    """Yield the rows of each HTML table as names with texts, in time linear in the page."""
    if len(page) > MAX_PAGE:
        return
    for part in _TABLE.split(page)[1:]:
        table = _TABLE_END.split(part, maxsplit=1)[0]
        rows = [
            [html.unescape(_TAG.sub("", cell)).strip() for cell in _CELL.split(row)[1:]]
            for row in _ROW.split(table)[1:]
        ]
        if len(rows) > 1:
            names, *body = rows
            yield [
                {name: cell for name, cell in zip(names, row, strict=True) if name}
                for row in body
                if len(row) == len(names)
            ]


FORMAT = LogFormat("notebooks", RecognisedBy.CONTENT, read_notebook, frozenset({".ipynb"}))
