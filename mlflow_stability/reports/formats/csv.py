"""A table for spreadsheets and pandas: a row for each finding, or for each run of a comparison.

No cell is a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from mlflow_stability.reports.escape import csv_cell
from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.reports.run_phrases import NO_TROUBLE
from mlflow_stability.vocabulary.result import Compared, Comparison, Diagnosis, Finding

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
COMPARISON_COLUMNS = (
    "rank",
    "source",
    "name",
    "outcome",
    "severity",
    "verdict",
    "cause",
    "first_step",
    "last_step",
    "onset",
    "divergence",
    "episodes",
    "spikes",
    "spikes_per_10k",
    "spikes_low",
    "spikes_high",
    "first_spike",
    "spike_score",
    "recovery_steps",
    "rolled_back",
    "skipped",
    "loss_metric",
    "first_loss",
    "final_loss",
    "best_loss",
    "steps_per_second",
    "overhead",
    "worse_than_baseline",
    "error",
)


def run(report: Report) -> str:
    """Return a row for each finding, and for each run without trouble that has none."""
    rows: list[dict[str, Any]] = []
    for diagnosis in report.diagnoses:
        cells = _diagnosis_cells(diagnosis)
        rows += [cells | _finding_cells(finding) for finding in diagnosis.findings]
        if not diagnosis.findings and diagnosis.outcome in NO_TROUBLE:
            rows.append(cells)
    return _table(COLUMNS, rows)


def comparison(compared: Comparison) -> str:
    """Return a row for each run, the most stable first, those that could not be read last.

    A column for each parameter that differs follows the fixed ones.
    """
    worse = {verdict.source: not verdict.passed for verdict in compared.gate.verdicts} if compared.gate else {}
    params = {csv_cell(f"param:{param.name}"): param.values for param in compared.differences if not param.is_tag}
    rows: list[dict[str, Any]] = []
    for place, run in enumerate(compared.runs):
        values = {column: _param(values[place]) for column, values in params.items()}
        rows.append({"rank": place + 1} | _compared_cells(run) | values)
    rows += [
        {"source": csv_cell(card.source), "name": csv_cell(card.name), "error": csv_cell(card.error)}
        for card in compared.unread
    ]
    cards = [*compared.cards, *compared.unread]
    for row, card in zip(rows, cards, strict=True):
        row["worse_than_baseline"] = _truth(worse.get(card.source))
    return _table((*COMPARISON_COLUMNS, *params), rows)


FORMAT = ReportFormat("csv", run, comparison, (".csv",), order=20)


def _table(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, tuple(columns), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _diagnosis_cells(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "source": csv_cell(diagnosis.source),
        "name": csv_cell(diagnosis.name),
        "outcome": diagnosis.outcome,
        "verdict": csv_cell(diagnosis.verdict),
        "verdict_cause": csv_cell("" if diagnosis.cause is None else diagnosis.cause.name),
    }


def _finding_cells(finding: Finding) -> dict[str, Any]:
    return {
        "step": finding.start,
        "issue_type": csv_cell(finding.kind),
        "severity": finding.severity.name,
        "message": csv_cell(finding.message),
        "metrics": csv_cell("; ".join(f"{name}={float(value)!r}" for name, value in finding.metrics.items())),
        "place": csv_cell(finding.place),
        "metric": csv_cell(finding.metric),
        "peak_step": finding.peak,
        "end_step": finding.end,
        "events": finding.count,
        "attempt": finding.attempt,
        "recovered": _truth(finding.recovered),
        "experimental": _truth(finding.experimental),
        "remedies": csv_cell("; ".join(map(str, finding.remedies))),
        "cause": csv_cell("" if finding.cause is None else finding.cause.name),
        "cause_statement": csv_cell("" if finding.cause is None else finding.cause.statement),
    }


def _compared_cells(run: Compared) -> dict[str, Any]:
    card, rate = run.card, run.spike_rate
    return {
        "source": csv_cell(card.source),
        "name": csv_cell(card.name),
        "outcome": card.outcome,
        "severity": card.severity.name,
        "verdict": csv_cell(card.verdict),
        "cause": csv_cell(card.cause),
        "first_step": card.first_step,
        "last_step": card.last_step,
        "onset": card.onset,
        "divergence": card.divergence,
        "episodes": len(card.troubles),
        "spikes": len(card.spike_steps),
        "spikes_per_10k": _exact(rate.per_10k if rate else None),
        "spikes_low": _exact(rate.low if rate else None),
        "spikes_high": _exact(rate.high if rate else None),
        "first_spike": min(card.spike_steps, default=None),
        "spike_score": _exact(card.spike_score),
        "recovery_steps": "; ".join(map(str, card.recovery_steps)),
        "rolled_back": card.rolled_back,
        "skipped": card.skipped,
        "loss_metric": csv_cell(card.loss),
        "first_loss": _exact(card.first_loss),
        "final_loss": _exact(card.final_loss),
        "best_loss": _exact(card.best_loss),
        "steps_per_second": _exact(card.steps_per_second),
        "overhead": _exact(card.overhead),
    }


def _param(value: str | None) -> str:
    """Return a number as it is, so that ``-1`` stays one; anything else without a formula."""
    try:
        float(value or "")
    except ValueError:
        return csv_cell(value or "")
    return value or ""


def _exact(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _truth(value: bool | None) -> str:
    return "" if value is None else str(value).lower()
