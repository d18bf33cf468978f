"""Reads Jupyter's notebooks: what their cells printed and showed while something was trained.

In: an `.ipynb`, of any version. Out: a `RunHistory` for each cell that trained something. Guarantees: progress bars
count as they stood in the end, unless that leaves no curve; tables that were shown (Hugging Face's trainer, fastai) and
a history that was printed or displayed are read where they say more than the text; nothing in the notebook is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.decode import LONGEST_LINE, plain, shown_path
from mlflow_stability.importers.files.html_table import tables_in
from mlflow_stability.importers.files.json_rows import parsed
from mlflow_stability.importers.formats.json_document import Document, document_in, read_document, rows_history
from mlflow_stability.importers.formats.text_log import TextLog
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.importers.text.overwritten import all_states, last_states
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text import metric_meanings

FEWEST = 8
"""Bars that leave fewer points than this in the end are read in all their states."""
_FORMAT = "notebook"
_LOSSES = ("loss", "val_loss")


@dataclass(frozen=True, slots=True)
class _Shown:
    """What one cell printed and showed."""

    printed: str
    pages: Sequence[str]
    values: Sequence[object]
    """What it displayed or printed of dictionaries and lists."""


def read_notebook(opening: Opening) -> list[RunHistory] | None:
    """The trainings in a notebook, in the order of their cells."""
    begun = opening.text.lstrip("\ufeff \t\r\n")
    if opening.encoding is None or not begun.startswith("{") or not _looks_like_one(opening, begun):
        return None
    document = document_in(opening.path, opening.encoding)
    if document is None or not isinstance(document.value, Mapping) or not {"cells", "worksheets"} & set(document.value):
        return None
    told = [
        (number, run) for number, cell in _cells(document.value) if (run := _trained(cell, opening.path)) is not None
    ]
    told = [each for each in told if _means(each[1], _LOSSES)] or [each for each in told if _means(each[1], ())]
    if not told:
        raise UnreadableLogError(
            f"{shown_path(opening.path)} is a notebook without training output: no cell has a metric with two "
            "or more values. If it was run without saving its output, run it again and save it."
        )
    if document.cut:
        note = "The notebook is truncated: its last cells are missing."
        told = [(number, replace(run, notes=(*run.notes, note))) for number, run in told]
    if len(told) == 1:
        return [told[0][1]]
    source = opening.path
    return [
        replace(run, source=str(source / f"cell {number}"), name=f"{source.name}, cell {number}")
        for number, run in told
    ]


def _looks_like_one(opening: Opening, begun: str) -> bool:
    return opening.path.suffix.lower() == ".ipynb" or '"cell_type"' in begun or '"nbformat"' in begun


def _cells(document: Mapping[str, object]) -> Iterator[tuple[int, _Shown]]:
    """The cells that put something out, by their number in the notebook."""
    sheets = [document, *(each for each in _list(document.get("worksheets")) if isinstance(each, Mapping))]
    every = [cell for sheet in sheets for cell in _list(sheet.get("cells"))]
    for number, cell in enumerate(every, start=1):
        outputs = (
            [each for each in _list(cell.get("outputs")) if isinstance(each, Mapping)]
            if isinstance(cell, Mapping)
            else []
        )
        if outputs:
            yield number, _shown(outputs)


def _shown(outputs: Sequence[Mapping[str, object]]) -> _Shown:
    printed, pages, values = [], [], []
    for output in outputs:
        data = output.get("data")
        data = data if isinstance(data, Mapping) else output
        page, text = _text(data.get("text/html", data.get("html"))), _text(data.get("text/plain", output.get("text")))
        if "ename" in output:
            text = f"\n{_text(output.get('ename'))}: {_text(output.get('evalue'))}\n"
        if "<table" in page.lower():
            pages.append(page)
        elif text.lstrip().startswith(("{", "[{", "defaultdict(")):
            value = parsed(text.strip())
            values.extend([value] if isinstance(value, dict | list) else [])
            printed.append(text)
        else:
            printed.append(text)
    return _Shown("".join(printed), pages, values)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    """A notebook's text, which may be a list of its lines."""
    if isinstance(value, list):
        return "".join(each for each in value if isinstance(each, str))
    return value if isinstance(value, str) else ""


def _trained(cell: _Shown, path: Path) -> RunHistory | None:
    """The training that a cell shows, if it does: where it shows it twice, what has more values of the loss."""
    text = _of_text(last_states(cell.printed), path)
    if _losses(text) < FEWEST and ("\r" in cell.printed or "\b" in cell.printed):
        text = _most([text, _of_text(all_states(cell.printed), path)])
    found = _most([text, _of_tables(cell.pages, path), *(_of_value(each, path) for each in cell.values)])
    if found is not None and text is not None and found is not text:
        found = replace(found, outcome=text.outcome, outcome_detail=text.outcome_detail, reported=text.reported)
    return found


def _most(histories: Sequence[RunHistory | None]) -> RunHistory | None:
    """The one with most values of a loss; of several the first."""
    return max((each for each in histories if each is not None), key=_losses, default=None)


def _losses(run: RunHistory | None) -> int:
    return 0 if run is None else sum(len(each.series) for each in run.metrics if each.meaning.quantity in _LOSSES)


def _means(run: RunHistory, quantities: Sequence[str]) -> bool:
    curves = [each.meaning for each in run.metrics if len(each.series) > 1]
    return any(each.quantity in quantities if quantities else each.known for each in curves)


def _of_text(lines: Iterator[str], path: Path) -> RunHistory | None:
    log = TextLog(of_a_file=False)
    for line in lines:
        log.take(plain(line[:LONGEST_LINE]))
    content, _ = log.finish()
    try:
        return history_of(content, path, _FORMAT)
    except UnreadableLogError:
        return None


def _of_tables(pages: Sequence[str], path: Path) -> RunHistory | None:
    rows: list[Mapping[str, object]] = []
    for page in pages:
        for table in tables_in(page):
            names = {name for row in table for name in row}
            if any(each.quantity in _LOSSES for each in metric_meanings(names).values()):
                rows.extend(table)
    return rows_history(rows, path, _FORMAT) if rows else None


def _of_value(value: object, path: Path) -> RunHistory | None:
    try:
        return read_document(path, Document(value), _FORMAT)
    except UnreadableLogError:
        return None


FORMAT = LogFormat("notebooks", RecognisedBy.CONTENT, read_notebook, frozenset({".ipynb"}))
