"""Shows on a terminal what many runs have in common."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from mlflow_stability.reports import comparison_wording as wording
from mlflow_stability.reports.pen import Pen
from mlflow_stability.vocabulary.cohort import Cohort

FEW_GROUPS = 8
_Row = tuple[Text, Text]


def show_cohort(pen: Pen, cohort: Cohort) -> None:
    """Seeds, survival, learning rate, and what goes with instability."""
    pen.section("Over seeds (final loss: interquartile mean and 95 % interval)", _groups(pen, cohort))
    pen.section("Time to divergence", _survival(pen, cohort))
    if cohort.sensitivity is not None:
        pen.section(
            "Learning rate", ((pen.text("-", "dim"), pen.text(e)) for e in wording.sensitivity(cohort.sensitivity))
        )
    pen.section("What goes with instability", _associations(pen, cohort))
    pen.section("What could not be told", ((pen.text("-", "dim"), pen.text(each)) for each in cohort.cannot_tell))


def _groups(pen: Pen, cohort: Cohort) -> Iterator[_Row]:
    groups = wording.repeated(cohort)
    shown = groups if pen.verbose else groups[:FEW_GROUPS]
    for each in shown:
        tested = f"; worse than the best: {wording.p_value(each.p_value)}" if each.p_value is not None else ""
        yield pen.text(each.label), pen.text(f"{wording.interval(each.final_loss)}; {wording.group(each)}{tested}")
    if len(shown) < len(groups):
        yield pen.text("-", "dim"), pen.text(f"{len(groups) - len(shown)} more; --verbose shows them", "dim")
    if groups and wording.not_repeated(cohort):
        yield pen.text("-", "dim"), pen.text(wording.not_repeated(cohort), "dim")


def _survival(pen: Pen, cohort: Cohort) -> Iterator[_Row]:
    if any(each.lost for each in cohort.survival):
        for each in cohort.survival:
            yield pen.text(each.label), pen.text(wording.survival(each))


def _associations(pen: Pen, cohort: Cohort) -> Iterator[_Row]:
    for each in cohort.associations:
        yield pen.text(" / ".join(each.params), "bold"), pen.text(wording.association(each))
    nothing = wording.nothing_named(cohort)
    if nothing:
        yield pen.text("-", "dim"), pen.text(nothing)
    if cohort.tree is not None and (cohort.associations or cohort.tree.better):
        yield pen.text("-", "dim"), pen.text(wording.tree(cohort.tree))
        if cohort.tree.better:
            for rule in cohort.tree.rules:
                yield pen.text(" ", "dim"), pen.text(rule)
    for said in (*cohort.confounded, *((wording.CONFOUNDING,) if cohort.associations else ())):
        yield pen.text("!", "yellow"), pen.text(said)
