"""Shows many runs on a terminal, a row for each, in the order asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from rich.table import Table
from rich.text import Text

from mlflow_stability.reports import wording
from mlflow_stability.reports.pen import OUTCOME_STYLES, Pen
from mlflow_stability.reports.report import Report, is_from_store
from mlflow_stability.vocabulary.diagnosis import Diagnosis
from mlflow_stability.vocabulary.event import Severity

SHORT = 12
"""A folder whose name is no longer than this is repeated in every row; a longer one is named once."""


def show_table(pen: Pen, report: Report) -> None:
    """What was read, what was found, and a row for each run."""
    pen.console.print(pen.text(f"{wording.read(report)}: {wording.counts(report)}", "bold"))
    if not report.diagnoses:
        return
    folder = _shared_folder(report.diagnoses)
    if folder:
        pen.console.print(pen.text(f"in {folder}", "dim"))
    pen.console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold", max_width=pen.console.width // 2)
    table.add_column("outcome", no_wrap=True)
    table.add_column("last step", no_wrap=True, justify="right")
    for severity in ("crit", "warn", "info"):
        table.add_column(severity, no_wrap=True, justify="right")
    for diagnosis in report.diagnoses:
        table.add_row(*_cells(pen, diagnosis, folder))
    pen.console.print(table)


def _cells(pen: Pen, diagnosis: Diagnosis, folder: str) -> list[Text]:
    source = diagnosis.source.removeprefix(folder)
    name = source if diagnosis.name in source else f"{diagnosis.name} ({source})"
    steps = f"{diagnosis.steps[1]:,}" if diagnosis.steps else "-"
    cells = [pen.text(name), pen.text(wording.outcome(diagnosis), OUTCOME_STYLES[diagnosis.outcome]), pen.text(steps)]
    for severity in sorted(Severity, reverse=True):
        count = sum(each.severity is severity for each in diagnosis.episodes)
        cells.append(pen.text(str(count), pen.style(severity)) if count else pen.text("-", "dim"))
    return cells


def _shared_folder(diagnoses: Sequence[Diagnosis]) -> str:
    """The folder that all of them lie in, with its separator at the end; empty where naming it once saves nothing."""
    sources = [each.source for each in diagnoses if not is_from_store(each)]
    if len(sources) < 2 or len(sources) < len(diagnoses):
        return ""
    folders = zip(*(Path(source).parent.parts for source in sources), strict=False)
    shared = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders)]
    folder = f"{Path(*shared)}{os.sep}" if shared else ""
    is_prefix = all(source.startswith(folder) for source in sources)
    return folder if len(folder) > SHORT and is_prefix else ""
