"""A table for spreadsheets and pandas."""

from __future__ import annotations

from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import ReportFormat
from mlflow_stability.vocabulary.result import Comparison


def run(report: Report) -> str:
    """Write what `diagnose` found."""
    from mlflow_stability.reports.run.csv_table import render

    return render(report)


def comparison(compared: Comparison) -> str:
    """Write what `compare` found."""
    from mlflow_stability.reports.comparison.comparison_csv import render

    return render(compared)


FORMAT = ReportFormat("csv", run, comparison, (".csv",), order=20)
