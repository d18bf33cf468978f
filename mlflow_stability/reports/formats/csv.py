"""A table for spreadsheets and pandas: a row for each finding, or for each run of a comparison.

No cell is a formula.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from mlflow_stability.reports.escape import csv_cell
from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.reports.run_phrases import NO_TROUBLE
from mlflow_stability.vocabulary.result import Compared, Comparison, Finding

_T = TypeVar("_T")

FINDING_CELLS: dict[str, Callable[[Finding], object]] = {
    "step": lambda finding: finding.start,
    "issue_type": lambda finding: finding.kind,
    "severity": lambda finding: finding.severity.name,
    "message": lambda finding: finding.message,
    "metrics": lambda finding: "; ".join(f"{name}={float(value)!r}" for name, value in finding.metrics.items()),
    "place": lambda finding: finding.place,
    "metric": lambda finding: finding.metric,
    "peak_step": lambda finding: finding.peak,
    "end_step": lambda finding: finding.end,
    "events": lambda finding: finding.count,
    "attempt": lambda finding: finding.attempt,
    "recovered": lambda finding: finding.recovered,
    "experimental": lambda finding: finding.experimental,
    "remedies": lambda finding: "; ".join(map(str, finding.remedies)),
    "cause": lambda finding: finding.cause and finding.cause.name,
    "cause_statement": lambda finding: finding.cause and finding.cause.statement,
}
COMPARED_CELLS: dict[str, Callable[[Compared], object]] = {
    "source": lambda run: run.card.source,
    "name": lambda run: run.card.name,
    "outcome": lambda run: run.card.outcome,
    "severity": lambda run: run.card.severity.name,
    "verdict": lambda run: run.card.verdict,
    "cause": lambda run: run.card.cause,
    "first_step": lambda run: run.card.first_step,
    "last_step": lambda run: run.card.last_step,
    "onset": lambda run: run.card.onset,
    "divergence": lambda run: run.card.divergence,
    "episodes": lambda run: len(run.card.troubles),
    "spikes": lambda run: len(run.card.spike_steps),
    "spikes_per_10k": lambda run: run.spike_rate and run.spike_rate.per_10k,
    "spikes_low": lambda run: run.spike_rate and run.spike_rate.low,
    "spikes_high": lambda run: run.spike_rate and run.spike_rate.high,
    "first_spike": lambda run: min(run.card.spike_steps, default=None),
    "spike_score": lambda run: run.card.spike_score,
    "recovery_steps": lambda run: "; ".join(map(str, run.card.recovery_steps)),
    "rolled_back": lambda run: run.card.rolled_back,
    "skipped": lambda run: run.card.skipped,
    "loss_metric": lambda run: run.card.loss,
    "first_loss": lambda run: run.card.first_loss,
    "final_loss": lambda run: run.card.final_loss,
    "best_loss": lambda run: run.card.best_loss,
    "steps_per_second": lambda run: run.card.steps_per_second,
    "overhead": lambda run: run.card.overhead,
}
COLUMNS = ("source", "name", "outcome", *FINDING_CELLS, "verdict", "verdict_cause")


def run(report: Report) -> str:
    """Return a row for each finding, and for each run without trouble that has none."""
    rows: list[dict[str, object]] = []
    for diagnosis in report.diagnoses:
        of_run = {
            "source": _cell(diagnosis.source),
            "name": _cell(diagnosis.name),
            "outcome": diagnosis.outcome,
            "verdict": _cell(diagnosis.verdict),
            "verdict_cause": _cell(diagnosis.cause and diagnosis.cause.name),
        }
        rows += [of_run | _cells(FINDING_CELLS, finding) for finding in diagnosis.findings]
        if not diagnosis.findings and diagnosis.outcome in NO_TROUBLE:
            rows.append(of_run)
    return _table(COLUMNS, rows)


def comparison(compared: Comparison) -> str:
    """Return a row for each run, the most stable first, those that could not be read last.

    A column for each parameter that differs follows the fixed ones.
    """
    worse = {verdict.source: not verdict.passed for verdict in compared.gate.verdicts} if compared.gate else {}
    params = {csv_cell(f"param:{param.name}"): param.values for param in compared.differences if not param.is_tag}
    rows: list[dict[str, object]] = []
    for place, run in enumerate(compared.runs):
        values = {column: _param(values[place]) for column, values in params.items()}
        rows.append({"rank": place + 1} | _cells(COMPARED_CELLS, run) | values)
    rows += [
        {"source": _cell(card.source), "name": _cell(card.name), "error": _cell(card.error)} for card in compared.unread
    ]
    for row, card in zip(rows, [*compared.cards, *compared.unread], strict=True):
        row["worse_than_baseline"] = _cell(worse.get(card.source))
    return _table(("rank", *COMPARED_CELLS, "worse_than_baseline", "error", *params), rows)


FORMAT = ReportFormat("csv", run, comparison, (".csv",), order=20)


def _table(columns: Iterable[str], rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, tuple(columns), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _cells(columns: Mapping[str, Callable[[_T], object]], item: _T) -> dict[str, object]:
    return {column: _cell(value(item)) for column, value in columns.items()}


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return csv_cell(value) if isinstance(value, str) else value


def _param(value: str | None) -> str:
    """Return a number as it is, so that ``-1`` stays one; anything else without a formula."""
    try:
        float(value or "")
    except ValueError:
        return csv_cell(value or "")
    return value or ""
