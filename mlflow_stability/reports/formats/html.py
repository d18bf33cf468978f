"""One HTML page that needs no network."""

from __future__ import annotations

from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.vocabulary.result import Comparison


def run(report: Report) -> str:
    from mlflow_stability.reports.html_kit.pages import run_page

    return run_page(report)


def comparison(compared: Comparison) -> str:
    from mlflow_stability.reports.html_kit.pages import comparison_page

    return comparison_page(compared)


FORMAT = ReportFormat("html", run, comparison, (".html", ".htm"), order=40)
