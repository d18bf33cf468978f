"""Writes a comparison as Markdown, for a pull request, an issue or a notebook.

In: a `Comparison`. Out: GitHub-flavoured Markdown. Guarantees: text from a run stays text.
"""

from __future__ import annotations

from collections.abc import Iterator

from mlflow_stability.reports.comparison import comparison_numbers as numbers
from mlflow_stability.reports.comparison.sections import comparison_sections
from mlflow_stability.reports.escape import markdown
from mlflow_stability.reports.markdown_sections import section_lines, table_lines
from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.reports.words.comparison_names import told_apart
from mlflow_stability.reports.words.comparison_summary import lead
from mlflow_stability.vocabulary.result import Compared, Comparison

STABLEST, SICKEST = 25, 25


def render(comparison: Comparison) -> str:
    """The comparison as text."""
    return "\n".join(_lines(told_apart(comparison))) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    head = (comparison.summary, wording.unfinished(comparison), lead(comparison))
    yield from ("# Training comparison", "", markdown(" ".join(each for each in head if each)))
    gate, *others = comparison_sections(comparison).all()
    yield from section_lines(gate)
    yield from _runs(comparison)
    for section in others:
        yield from section_lines(section)


def _runs(comparison: Comparison) -> Iterator[str]:
    """The two tables of runs."""
    if not comparison.runs:
        return
    first, last, between = wording.chosen(comparison.runs, STABLEST, SICKEST)
    gap = [("…", *("" for _ in numbers.HEAD[1:]))] if between else []
    yield from ("", f"## {numbers.RUNS_TITLE}")
    yield from table_lines(numbers.HEAD, [*map(_row, first), *gap, *map(_row, last)])
    if between:
        yield from ("", wording.left_out(between))
    cards = [each.card for each in (*first, *last)]
    if columns := numbers.columns_of(cards):
        cells = [(wording.name(card), *(each.say(card) for each in columns)) for card in cards]
        yield from ("", f"## {numbers.TITLE}")
        yield from table_lines(("run", *(each.title for each in columns)), cells)
        yield from ("", numbers.meanings(columns))


def _row(each: Compared) -> tuple[str, ...]:
    card = each.card
    return (
        wording.name(card),
        wording.outcome(card),
        wording.steps(card.onset),
        wording.rate(each.spike_rate),
        wording.recovery(card),
        wording.number(card.final_loss),
        wording.number(card.best_loss),
        wording.lost_steps(card),
        card.verdict,
    )
