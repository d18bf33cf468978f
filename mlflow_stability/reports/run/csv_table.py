"""Writes a report as a table for spreadsheets and scripts: one row for each issue, and for each run without any.

In: a `Report`. Out: CSV with a header line. Guarantees: each issue is a row beneath it; a run that is well and has none
is a row whose columns of issues are empty; no cell is a formula. Evidence and remedies share a cell each, parted by
"; ".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from mlflow_stability.reports.escape import csv_cell
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.words.run_phrases import WELL
from mlflow_stability.vocabulary.result import Diagnosis, Finding

COLUMNS = (
    "source",
    "name",
    "outcome",
    "step",
    "issue_type",
    "severity",
    "message",
    "metrics",
    "place",
    "metric",
    "peak_step",
    "end_step",
    "events",
    "attempt",
    "recovered",
    "experimental",
    "remedies",
    "cause",
    "cause_statement",
    "verdict",
    "verdict_cause",
)
_NO_ISSUE = [""] * (len(COLUMNS) - 5)
"""What a run has between its own columns and those of its verdict."""


def render(report: Report) -> str:
    """The table as text."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for diagnosis in report.diagnoses:
        for episode in diagnosis.findings:
            table.writerow([*_of_run(diagnosis), *_of_issue(episode), *_of_verdict(diagnosis)])
        if not diagnosis.findings and diagnosis.outcome in WELL:
            table.writerow([*_of_run(diagnosis), *_NO_ISSUE, *_of_verdict(diagnosis)])
    return text.getvalue()


def _of_run(diagnosis: Diagnosis) -> Iterator[str]:
    yield csv_cell(diagnosis.source)
    yield csv_cell(diagnosis.name)
    yield diagnosis.outcome


def _of_verdict(diagnosis: Diagnosis) -> Iterator[str]:
    yield csv_cell(diagnosis.verdict)
    yield csv_cell("" if diagnosis.cause is None else diagnosis.cause.name)


def _of_issue(episode: Finding) -> Iterator[str | int]:
    yield episode.start
    yield csv_cell(episode.kind)
    yield episode.severity.name
    yield csv_cell(episode.message)
    yield csv_cell("; ".join(f"{name}={float(value)!r}" for name, value in episode.metrics.items()))
    yield csv_cell(episode.place)
    yield csv_cell(episode.metric)
    yield episode.peak
    yield episode.end
    yield episode.count
    yield episode.attempt
    yield "" if episode.recovered is None else str(episode.recovered).lower()
    yield str(episode.experimental).lower()
    yield csv_cell("; ".join(map(str, episode.remedies)))
    yield csv_cell("" if episode.cause is None else episode.cause.name)
    yield csv_cell("" if episode.cause is None else episode.cause.statement)
