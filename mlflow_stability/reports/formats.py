"""The forms that a report can take, by the names that people type.

In: a name and a `Report`. Out: text. What a form needs is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from mlflow_stability.reports.report import Report

FORMATS = {
    "rich": "mlflow_stability.reports.run.terminal",
    "json": "mlflow_stability.reports.run.json_document",
    "csv": "mlflow_stability.reports.run.csv_table",
    "markdown": "mlflow_stability.reports.run.markdown_page",
    "html": "mlflow_stability.reports.run.html_page",
}
"""Where each is written; `rich` is the one for people at a terminal."""
ENDINGS = {
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".txt": "rich",
}
"""The form that the name of a file asks for."""


def render(report: Report, form: str) -> str:
    """The report in one of the forms."""
    text: str = import_module(FORMATS[form]).render(report)
    return text


def form_of(file: Path) -> str | None:
    """The form that goes into a file of this name, if its ending says so."""
    return ENDINGS.get(file.suffix.lower())
