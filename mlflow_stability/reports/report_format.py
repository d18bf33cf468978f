"""The output formats, and a report in one of them.

Each module of `formats` that has a `FORMAT` adds one: `--output-format`, the endings of files that `--output` knows,
and `log_report` follow.
"""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.vocabulary.discovery import constants_of
from mlflow_stability.vocabulary.result import Comparison

FORMATS = {
    form.name: form
    for form in sorted(
        constants_of(f"{__package__}.formats", "FORMAT", ReportFormat), key=lambda form: (form.order, form.name)
    )
}
"""Every format by its name; `rich` is the one for people at a terminal."""
ENDINGS = {ending: form.name for form in FORMATS.values() for ending in form.endings}


def render(report: Report, name: str) -> str:
    return FORMATS[name].run(report)


def render_comparison(comparison: Comparison, name: str) -> str:
    return FORMATS[name].comparison(comparison)


def form_of(file: Path) -> str | None:
    """Return the format that the ending of this file name selects, or None."""
    return ENDINGS.get(file.suffix.lower())
