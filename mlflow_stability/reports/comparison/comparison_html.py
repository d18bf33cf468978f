"""Writes a comparison as one page: for a browser, a printer, and the artifact viewer of MLflow.

In: a `Comparison`. Out: HTML with its style and its pictures inside. Guarantees: it needs no network and no script;
every name is escaped; the same comparison gives the same page; of very many runs the most and the least stable are
listed.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Template

from mlflow_stability.reports.comparison import comparison_numbers as numbers
from mlflow_stability.reports.comparison.sections import comparison_sections
from mlflow_stability.reports.html_kit.dots import dots_of
from mlflow_stability.reports.html_kit.layers_picture import layers_picture_of
from mlflow_stability.reports.html_kit.overlay import HEIGHT, WIDTH, overlay_of
from mlflow_stability.reports.html_kit.strips import strips_of
from mlflow_stability.reports.html_kit.survival_picture import survival_picture_of
from mlflow_stability.reports.html_kit.templates import page_template
from mlflow_stability.reports.terminal_kit import number_text
from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.reports.words.comparison_names import told_apart
from mlflow_stability.reports.words.comparison_summary import lead
from mlflow_stability.vocabulary.result import Comparison

STABLEST, SICKEST = 50, 50


def render(comparison: Comparison) -> str:
    """The comparison as a page."""
    comparison = told_apart(comparison)
    cohort = comparison.cohort
    first, last, between = wording.chosen(comparison.runs, STABLEST, SICKEST)
    page = _template().render(
        comparison=comparison,
        lead=lead(comparison),
        first=first,
        last=last,
        between=between,
        verdicts={each.source: each for each in comparison.gate.verdicts} if comparison.gate else {},
        columns=numbers.columns_of([each.card for each in (*first, *last)]),
        sections=comparison_sections(comparison),
        overlay=overlay_of(comparison.cards),
        layers=[layers_picture_of(each, wording.two_names(comparison)) for each in comparison.layers],
        strips=strips_of(comparison.cards),
        survival=survival_picture_of(cohort.survival) if cohort else None,
        dots=[dots_of(each) for each in cohort.plots] if cohort else [],
    )
    return page + "\n"


@cache
def _template() -> Template:
    return page_template(
        "comparison_page.html", wording=wording, numbers=numbers, number_text=number_text, width=WIDTH, height=HEIGHT
    )
