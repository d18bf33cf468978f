"""The output formats, and a report in one of them.

Each module of `formats` that has a `FORMAT` adds one to those here: `--output-format`, the endings of files that
`--output` knows, and `log_report` follow. Notebooks show results as the HTML page, in a frame that loads nothing and
runs no script.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from mlflow_stability.reports.report import Report, ReportFormat
from mlflow_stability.vocabulary.discovery import constants_of
from mlflow_stability.vocabulary.result import Comparison, register_page


def _run_text(report: Report) -> str:
    from mlflow_stability.reports.run_terminal import render

    return render(report)


def _comparison_text(compared: Comparison) -> str:
    from mlflow_stability.reports.comparison_terminal import render

    return render(compared)


def _run_page(report: Report) -> str:
    from mlflow_stability.reports.html_kit.pages import run_page

    return run_page(report)


def _comparison_page(compared: Comparison) -> str:
    from mlflow_stability.reports.html_kit.pages import comparison_page

    return comparison_page(compared)


_FORMATS = (
    ReportFormat("rich", _run_text, _comparison_text, (".txt",), order=0),
    ReportFormat("html", _run_page, _comparison_page, (".html", ".htm"), order=40),
    *constants_of(f"{__package__}.formats", "FORMAT", ReportFormat),
)
FORMATS = {form.name: form for form in sorted(_FORMATS, key=lambda form: (form.order, form.name))}
"""Every format by its name; `rich` is the one for people at a terminal."""
ENDINGS = {ending: form.name for form in FORMATS.values() for ending in form.endings}


def render(report: Report, name: str) -> str:
    return FORMATS[name].run(report)


def render_comparison(comparison: Comparison, name: str) -> str:
    return FORMATS[name].comparison(comparison)


def form_of(file: Path) -> str | None:
    """Return the format that the ending of this file name selects, or None."""
    return ENDINGS.get(file.suffix.lower())


# The lower edge of the frame can be dragged, and the page scrolls in it.
_STYLE = (
    "width:100%;height:640px;border:1px solid #8886;border-radius:4px;resize:vertical;overflow:auto;"
    "box-sizing:border-box"
)


def _in_frame(page: str, title: str) -> str:
    # Without a base, links to a part of the page would lead to the notebook's address.
    page = page.replace("<head>", '<head><base href="about:srcdoc">', 1)
    return f'<iframe title="{escape(title)}" sandbox srcdoc="{escape(page)}" style="{_STYLE}"></iframe>'


register_page("Diagnosis", lambda result: _in_frame(render(Report((result,)), "html"), f"Diagnosis of {result.name}"))
register_page("Comparison", lambda result: _in_frame(render_comparison(result, "html"), "Comparison of runs"))
