"""Writes a comparison as Markdown, for a pull request, an issue or a notebook.

In: a `Comparison`. Out: GitHub-flavoured Markdown. Promised: nothing that a run brought along becomes structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlflow_stability.reports.comparison import comparison_numbers as numbers
from mlflow_stability.reports.escape import markdown
from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.reports.words import layer_phrases as layers_wording
from mlflow_stability.reports.words.comparison_names import told_apart
from mlflow_stability.reports.words.comparison_summary import lead, remarks
from mlflow_stability.vocabulary.result.cohort import Cohort
from mlflow_stability.vocabulary.result.comparison import Compared, Comparison, Gate
from mlflow_stability.vocabulary.run.run_card import RunCard

STABLEST, SICKEST = 25, 25
MOST_CAUSES = 20
HEAD = ("run", "outcome", "since", "spikes per 10k steps", "recovered", "final", "best", "wasted", "verdict")


def render(comparison: Comparison) -> str:
    """The comparison as text."""
    return "\n".join(_lines(told_apart(comparison))) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield "# Training comparison"
    yield ""
    head = (comparison.summary, wording.unfinished(comparison), lead(comparison))
    yield markdown(" ".join(each for each in head if each))
    if comparison.gate is not None:
        yield from _gate(comparison.gate)
    if comparison.runs:
        first, last, between = wording.chosen(comparison.runs, STABLEST, SICKEST)
        rows = [_row(each) for each in first]
        rows += [(f"{between} more", *("" for _ in HEAD[1:]))] if between else []
        yield from _table("Runs, the stablest first", HEAD, [*rows, *(_row(each) for each in last)])
        cards = [each.card for each in (*first, *last)]
        columns = numbers.columns_of(cards)
        if columns:
            cells = [(wording.name(card), *(each.say(card) for each in columns)) for card in cards]
            yield from _table(numbers.TITLE, ("run", *(each.title for each in columns)), cells)
            yield from ("", numbers.meanings(columns))
    sick = [card for card in reversed(comparison.cards) if card.troubles]
    more = [f"{len(sick) - MOST_CAUSES} more had trouble."] if len(sick) > MOST_CAUSES else []
    yield from _list("Why, the sickest first", [*map(_why, sick[:MOST_CAUSES]), *more])
    if comparison.parting is not None:
        yield from _list("Where they part", [comparison.parting.sentence])
    if comparison.layers:
        names = wording.two_names(comparison)
        said = [f"{layers_wording.title(e)}: {layers_wording.sentences(e, names)}" for e in comparison.layers]
        yield from _list(layers_wording.SECTION, said)
    found = wording.differences(comparison)
    differences = [(f"{e.name}{' (tag)' if e.is_tag else ''}", wording.values(e)) for e in found]
    if differences:
        yield from _table(wording.differs_title(comparison), ("parameter", "values"), differences)
    if comparison.cohort is not None:
        yield from _cohort(comparison.cohort)
    yield from _list("What could not be read", [f"{each.source}: {each.error}" for each in comparison.unread])
    yield from _list("Remarks", remarks(comparison))


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
        wording.wasted(card),
        card.verdict,
    )


def _why(card: RunCard) -> str:
    """With its id, or its path: what `diagnose` takes."""
    where = f" Run {card.source}" if card.source != card.name else ""
    return f"{wording.name(card)}: {card.cause_statement or 'no cause is known.'}{where}"


def _gate(gate: Gate) -> Iterator[str]:
    rows = [(e.name or e.source, "ok" if e.passed else "worse", " ".join(e.reasons)) for e in gate.verdicts]
    title = f"Against the baseline {gate.name or gate.baseline}: {'passed' if gate.passed else 'failed'}"
    yield from _table(title, ("run", "", "why"), rows)
    yield from _list("", gate.cannot_tell)


def _cohort(cohort: Cohort) -> Iterator[str]:
    groups = wording.repeated(cohort)
    if groups:
        rows = [
            (
                e.label,
                wording.group(e),
                wording.interval(e.final_loss),
                wording.interval(e.best_loss),
                wording.p_value(e.p_value),
            )
            for e in groups
        ]
        head = ("group", "runs", "final loss", "best loss", "worse than the best")
        yield from _table("Over seeds (interquartile mean, 95 % interval)", head, rows)
        yield from (("", wording.not_repeated(cohort)) if wording.not_repeated(cohort) else ())
    if any(each.lost for each in cohort.survival):
        told = [(each.label, wording.survival(each)) for each in cohort.survival]
        yield from _table("Time to divergence", ("runs", "lost"), told)
    if cohort.sensitivity is not None:
        yield from _list("Learning rate", wording.sensitivity(cohort.sensitivity))
    said = [f"{' / '.join(each.params)}: {wording.association(each)}" for each in cohort.associations]
    said += [nothing] if (nothing := wording.nothing_named(cohort)) else []
    if cohort.tree is not None and (cohort.associations or cohort.tree.better):
        said += [wording.tree(cohort.tree), *(cohort.tree.rules if cohort.tree.better else ())]
    said += [*cohort.confounded, *((wording.CONFOUNDING,) if cohort.associations else ())]
    yield from _list("What goes with instability", said)
    yield from _list("What could not be told", cohort.cannot_tell)


def _list(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        if title:
            yield ""
            yield f"## {title}"
        yield ""
        yield from (f"- {markdown(each)}" for each in sentences)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield f"## {markdown(title)}"
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(markdown(cell) for cell in row)} |"
