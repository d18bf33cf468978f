"""Writes a report as one page: for a browser, a printer, and the artifact viewer of MLflow.

In: a `Report`. Out: HTML with its style and its drawings inside. Promised: it needs no network and no script, so that
it works in a sandboxed frame; every name is escaped; the same report gives the same page.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mlflow_stability.reports import wording
from mlflow_stability.reports.chart import HEIGHT, WIDTH, Chart, chart_of
from mlflow_stability.reports.curve import number_text
from mlflow_stability.reports.harmless import plain
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.sketched import sketches_of
from mlflow_stability.vocabulary.diagnosis import Diagnosis

MOST_CHARTS = 6
"""Curves drawn of one run; the table lists them all."""


def render(report: Report) -> str:
    """The report as a page."""
    return _template().render(report=report, charts=[_charts(each) for each in report.diagnoses]) + "\n"


def _charts(diagnosis: Diagnosis) -> list[Chart]:
    """The first curve with every episode, the others with their own."""
    numbered = list(enumerate(diagnosis.episodes, start=1))
    return [
        chart_of(curve, [one for one in numbered if place == 0 or one[1].metric == curve.metric])
        for place, curve in enumerate(sketches_of(diagnosis)[:MOST_CHARTS])
    ]


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("mlflow_stability.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(wording=wording, number_text=number_text, width=WIDTH, height=HEIGHT)
    return environment.get_template("report.html")


def _harmless(value: object) -> object:
    """Whatever the template shows of others; what its own macros wrote stays as it is."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
