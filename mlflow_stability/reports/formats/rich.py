"""Text for people at a terminal, and for a file of text."""

from __future__ import annotations

from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.vocabulary.result import Comparison


def run(report: Report) -> str:
    from mlflow_stability.reports.run_terminal import render

    return render(report)


def comparison(compared: Comparison) -> str:
    from mlflow_stability.reports.comparison_terminal import render

    return render(compared)


FORMAT = ReportFormat("rich", run, comparison, (".txt",), order=0)
