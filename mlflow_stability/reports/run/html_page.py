"""Writes a report as one page: for a browser, a printer, and the artifact viewer of MLflow.

In: a `Report`. Out: HTML with its style and its drawings inside. Guarantees: it needs no network and no script, so that
it works in a sandboxed frame; every name is escaped; the same report gives the same page.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Template

from mlflow_stability.reports.html_kit.chart import HEIGHT, WIDTH, Chart, chart_of
from mlflow_stability.reports.html_kit.sketched import sketches_of
from mlflow_stability.reports.html_kit.templates import page_template
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run.sections import overview, run_sections
from mlflow_stability.reports.sections import failures
from mlflow_stability.reports.terminal_kit import number_text
from mlflow_stability.reports.words import run_phrases as wording
from mlflow_stability.vocabulary.result import Diagnosis

MOST_CHARTS = 6
"""Curves drawn of one run; the table lists them all."""


def render(report: Report) -> str:
    """The report as a page."""
    page = _template().render(
        report=report,
        overview=overview(report),
        runs=[run_sections(each) for each in report.diagnoses],
        charts=[_charts(each) for each in report.diagnoses],
        unread=failures((each.source, each.message) for each in report.failures),
    )
    return f"{page}\n"


def _charts(diagnosis: Diagnosis) -> list[Chart]:
    """The first curve with every episode, the others with their own."""
    numbered = list(enumerate(diagnosis.findings, start=1))
    return [
        chart_of(curve, [one for one in numbered if place == 0 or one[1].metric == curve.metric])
        for place, curve in enumerate(sketches_of(diagnosis)[:MOST_CHARTS])
    ]


@cache
def _template() -> Template:
    return page_template("run_page.html", wording=wording, number_text=number_text, width=WIDTH, height=HEIGHT)
