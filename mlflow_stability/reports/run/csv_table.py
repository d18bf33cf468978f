"""Writes a report as a table for spreadsheets and scripts: one row for each issue.

In: a `Report`. Out: CSV with a header line. Guarantees: as many rows beneath it as there are issues; no cell is a
formula. Evidence and remedies share a cell each, parted by "; ".
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from mlflow_stability.reports.escape import csv_cell
from mlflow_stability.reports.report import Report
from mlflow_stability.vocabulary.result.diagnosis import Diagnosis
from mlflow_stability.vocabulary.result.episode import Episode

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


def render(report: Report) -> str:
    """The table as text."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for diagnosis, episode in report.issues():
        table.writerow(_cells(diagnosis, episode))
    return text.getvalue()


def _cells(diagnosis: Diagnosis, episode: Episode) -> Iterator[str | int]:
    yield csv_cell(diagnosis.source)
    yield csv_cell(diagnosis.name)
    yield diagnosis.outcome
    yield episode.start
    yield csv_cell(episode.kind)
    yield episode.severity.name
    yield csv_cell(episode.message)
    yield csv_cell("; ".join(f"{name}={float(value)!r}" for name, value in episode.evidence.items()))
    yield csv_cell(episode.place)
    yield csv_cell(episode.metric)
    yield episode.peak
    yield episode.end
    yield episode.events
    yield episode.attempt
    yield "" if episode.recovered is None else str(episode.recovered).lower()
    yield str(episode.experimental).lower()
    yield csv_cell("; ".join(episode.remedies))
    yield csv_cell("" if episode.cause is None else episode.cause.name)
    yield csv_cell("" if episode.cause is None else episode.cause.statement)
    yield csv_cell(diagnosis.verdict)
    yield csv_cell("" if diagnosis.cause is None else diagnosis.cause.name)
