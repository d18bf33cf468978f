"""Write reports as one page: for a browser, a printer, and the artifact viewer of MLflow.

A page has its style and its drawings inside and needs no network and no script, so that it works in a sandboxed frame.
`policy.html` forbids both to it.
Every name is escaped; the same input gives the same page.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from mlflow_stability.reports import comparison_phrases, run_phrases
from mlflow_stability.reports.comparison_sections import comparison_sections, lead, with_distinct_names
from mlflow_stability.reports.drawn_curve import drawn_curves
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.html_kit.axis import HEIGHT, WIDTH
from mlflow_stability.reports.html_kit.chart import Chart, chart_of
from mlflow_stability.reports.html_kit.comparison_pictures import dots_of, overlay_of, strips_of, survival_picture_of
from mlflow_stability.reports.html_kit.layers_picture import layers_picture_of
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run_sections import overview, run_sections
from mlflow_stability.reports.sections import failures
from mlflow_stability.vocabulary.result import Comparison, Diagnosis
from mlflow_stability.vocabulary.text import number_text

MAX_CHARTS = 6
"""Curves drawn for one run; the table lists them all."""
MAX_STABLEST, MAX_UNSTABLE = 50, 50


def run_page(report: Report) -> str:
    """Return what `diagnose` found."""
    return _page(
        "run_page.html",
        wording=run_phrases,
        report=report,
        overview=overview(report),
        runs=[run_sections(diagnosis) for diagnosis in report.diagnoses],
        charts=[_charts(diagnosis) for diagnosis in report.diagnoses],
        unread=failures((failure.source, failure.message) for failure in report.failures),
    )


def comparison_page(comparison: Comparison) -> str:
    """Return what `compare` found; of very many runs the most and the least stable are listed."""
    comparison = with_distinct_names(comparison)
    cohort = comparison.cohort
    first, last, between = comparison_phrases.chosen(comparison.runs, MAX_STABLEST, MAX_UNSTABLE)
    names = comparison_phrases.two_names(comparison) if comparison.layers else ("", "")
    return _page(
        "comparison_page.html",
        wording=comparison_phrases,
        comparison=comparison,
        lead=lead(comparison),
        first=first,
        last=last,
        between=between,
        verdicts={verdict.source: verdict for verdict in comparison.gate.verdicts} if comparison.gate else {},
        columns=comparison_phrases.number_columns([run.card for run in (*first, *last)]),
        sections=comparison_sections(comparison),
        overlay=overlay_of(comparison.cards),
        layers=[layers_picture_of(beside, names) for beside in comparison.layers],
        strips=strips_of(comparison.cards),
        survival=survival_picture_of(cohort.survival) if cohort else None,
        dots=[dots_of(plot) for plot in cohort.plots] if cohort else [],
    )


def _charts(diagnosis: Diagnosis) -> list[Chart]:
    """The first curve with every finding, the others with their own."""
    numbered = list(enumerate(diagnosis.findings, start=1))
    return [
        chart_of(
            curve, [(number, finding) for number, finding in numbered if place == 0 or finding.metric == curve.metric]
        )
        for place, curve in enumerate(drawn_curves(diagnosis)[:MAX_CHARTS])
    ]


def _page(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values) + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mlflow_stability.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escaped,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(number_text=number_text, width=WIDTH, height=HEIGHT)
    return environment


def _escaped(value: object) -> object:
    """Names and messages without control characters; output of the template's own macros unchanged."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
