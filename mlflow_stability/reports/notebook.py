"""Shows results in notebooks as the page of the HTML report, in a frame.

In: a diagnosis or a comparison. Out: HTML for the output of a cell. Guarantees: the styles of the notebook and those of
the page do not reach each other; nothing is loaded and no script runs; links within the page stay within it.
"""

from __future__ import annotations

from html import escape

from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import render, render_comparison
from mlflow_stability.vocabulary.result import Comparison, Diagnosis, register_page

HEIGHT = 640
"""Pixels of the frame; its lower edge can be dragged, and the page scrolls in it."""
_STYLE = (
    f"width:100%;height:{HEIGHT}px;border:1px solid #8886;border-radius:4px;resize:vertical;overflow:auto;"
    "box-sizing:border-box"
)


def diagnosis_in_frame(diagnosis: Diagnosis) -> str:
    """The report of one run."""
    return in_frame(render(Report((diagnosis,)), "html"), f"Diagnosis of {diagnosis.name}")


def comparison_in_frame(comparison: Comparison) -> str:
    """The report of several."""
    return in_frame(render_comparison(comparison, "html"), "Comparison of runs")


def in_frame(page: str, title: str) -> str:
    """A whole page as the content of a frame."""
    # Without this, links to a part of the page would lead to the notebook's address.
    page = page.replace("<head>", '<head><base href="about:srcdoc">', 1)
    return f'<iframe title="{escape(title)}" sandbox srcdoc="{escape(page)}" style="{_STYLE}"></iframe>'


register_page(Diagnosis.__name__, diagnosis_in_frame)
register_page(Comparison.__name__, comparison_in_frame)
