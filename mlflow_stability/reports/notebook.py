"""Show results in notebooks as the page of the HTML report, in a frame that loads nothing and runs no script.

Importing this module registers the pages.
"""

from __future__ import annotations

from html import escape

from mlflow_stability.reports.report import Report
from mlflow_stability.reports.report_format import render, render_comparison
from mlflow_stability.vocabulary.result import Comparison, Diagnosis, register_page

# The lower edge of the frame can be dragged, and the page scrolls in it.
_STYLE = (
    "width:100%;height:640px;border:1px solid #8886;border-radius:4px;resize:vertical;overflow:auto;"
    "box-sizing:border-box"
)


def diagnosis_in_frame(diagnosis: Diagnosis) -> str:
    return _in_frame(render(Report((diagnosis,)), "html"), f"Diagnosis of {diagnosis.name}")


def comparison_in_frame(comparison: Comparison) -> str:
    return _in_frame(render_comparison(comparison, "html"), "Comparison of runs")


def _in_frame(page: str, title: str) -> str:
    # Without a base, links to a part of the page would lead to the notebook's address.
    page = page.replace("<head>", '<head><base href="about:srcdoc">', 1)
    return f'<iframe title="{escape(title)}" sandbox srcdoc="{escape(page)}" style="{_STYLE}"></iframe>'


register_page(Diagnosis.__name__, diagnosis_in_frame)
register_page(Comparison.__name__, comparison_in_frame)
