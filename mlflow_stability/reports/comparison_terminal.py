"""Shows a comparison to a person at a terminal.

In: a `Comparison` and a console. Out: the runs in order of stability, why the sickest are sick, where two part and how
far their layers do, what differs, the gate, and what the runs have in common. Promised: it fits into 80 columns; what
only colour says is said in words too; of very many runs the stablest and the sickest are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from mlflow_stability.reports import comparison_numbers as numbers
from mlflow_stability.reports import comparison_wording as wording
from mlflow_stability.reports import layers_wording
from mlflow_stability.reports.comparison_terminal_cohort import show_cohort
from mlflow_stability.reports.pen import OUTCOME_STYLES, Pen, written
from mlflow_stability.vocabulary.comparison import Compared, Comparison

WIDTH_OF_A_FILE = 100
STABLEST, SICKEST = 5, 10
FEW_RUNS = 6
"""Up to so many the second table is shown without being asked for."""
FEW_CAUSES, FEW_DIFFERENCES, FEW_UNREAD, FEW_TAGS = 5, 12, 10, 4
COLUMNS = ("run", "outcome", "since", "spikes/10k", "final", "best", "wasted")
_Row = tuple[Text, Text]


def render(comparison: Comparison, *, verbose: bool = False, width: int = WIDTH_OF_A_FILE, unicode: bool = True) -> str:
    """The comparison as plain text, for a file or a pipe."""
    return written(lambda console: show(Pen(console, unicode=unicode, verbose=verbose), comparison), width)


def show(pen: Pen, comparison: Comparison) -> None:
    """Write the comparison."""
    pen.rule("compare")
    pen.console.print(pen.text(comparison.summary, "bold"))
    if comparison.interrupted:
        pen.console.print(pen.text(wording.unfinished(comparison), "bold yellow"))
    _show_runs(pen, comparison)
    pen.section("Why", _causes(pen, comparison))
    if comparison.parting is not None:
        pen.paragraph("Where they part", comparison.parting.sentence)
    pen.section(layers_wording.SECTION, _layers(pen, comparison))
    pen.section(wording.differs_title(comparison), _differences(pen, comparison))
    pen.section(_gate_title(comparison), _gate(pen, comparison))
    if comparison.cohort is not None:
        show_cohort(pen, comparison.cohort)
    pen.section("What could not be read", _unread(pen, comparison))
    pen.section("Remarks", ((pen.text("-", "dim"), pen.text(each)) for each in comparison.notes))


def _show_runs(pen: Pen, comparison: Comparison) -> None:
    if not comparison.runs:
        return
    most = len(comparison.runs) if pen.verbose else STABLEST
    first, last, between = wording.chosen(comparison.runs, most, SICKEST)
    chosen = (*first, *last)
    _show_table(pen, COLUMNS, [_cells(pen, each) for each in chosen], len(first), between)
    columns = numbers.columns_of([each.card for each in chosen])
    if columns and (pen.verbose or len(comparison.runs) <= FEW_RUNS):
        heads = ("run", *(each.title for each in columns))
        rows = [[pen.text(wording.name(e.card)), *(pen.text(c.say(e.card)) for c in columns)] for e in chosen]
        _show_table(pen, heads, rows, len(first), between)
        pen.console.print(pen.text(numbers.meanings(columns), "dim"))


def _show_table(pen: Pen, heads: Sequence[str], rows: Sequence[Sequence[Text]], first: int, between: int) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    wide = [max(len(title), *(row[place].cell_len for row in rows)) for place, title in enumerate(heads)]
    left = max(8, pen.console.width - sum(wide[1:]) - 2 * (len(heads) - 1))  # the name alone gives way
    table.add_column(heads[0], overflow="ellipsis" if pen.unicode else "crop", no_wrap=True, max_width=left)
    for place, title in enumerate(heads[1:], start=1):
        side = "left" if title == "outcome" else "right"
        table.add_column(title, no_wrap=True, min_width=wide[place], justify=side)  # type: ignore[arg-type]
    for number, row in enumerate(rows):
        if between and number == first:
            table.add_row(pen.text(f"{between} more", "dim"))
        table.add_row(*row)
    pen.console.print()
    pen.console.print(table)


def _cells(pen: Pen, each: Compared) -> list[Text]:
    card = each.card
    return [
        pen.text(wording.name(card)),
        pen.text(wording.outcome(card), OUTCOME_STYLES[card.outcome]),
        pen.text(wording.steps(card.onset)),
        pen.text(wording.short_rate(each.spike_rate)),
        pen.text(wording.number(card.final_loss)),
        pen.text(wording.number(card.best_loss)),
        pen.text(f"{card.wasted:,}" if card.wasted else wording.NOTHING),
    ]


def _causes(pen: Pen, comparison: Comparison) -> Iterator[_Row]:
    """The sickest first."""
    sick = [card for card in reversed(comparison.cards) if card.troubles]
    shown = sick if pen.verbose else sick[:FEW_CAUSES]
    for card in shown:
        why = f" {card.cause_statement}" if card.cause_statement else ""
        yield pen.text(wording.name(card), "bold"), pen.text(f"{card.verdict}{why}")
    yield from _more(pen, len(sick) - len(shown))


def _layers(pen: Pen, comparison: Comparison) -> Iterator[_Row]:
    for each in comparison.layers:
        names = wording.two_names(comparison)
        yield pen.text(layers_wording.title(each)), pen.text(layers_wording.sentences(each, names))


def _differences(pen: Pen, comparison: Comparison) -> Iterator[_Row]:
    params = [each for each in comparison.differences if not each.is_tag]
    tags = [each for each in comparison.differences if each.is_tag]
    shown = [*params, *tags] if pen.verbose else [*params[:FEW_DIFFERENCES], *tags[:FEW_TAGS]]
    for each in shown:
        yield pen.text(f"{each.name}{' (tag)' if each.is_tag else ''}"), pen.text(wording.values(each))
    yield from _more(pen, len(comparison.differences) - len(shown))


def _gate_title(comparison: Comparison) -> str:
    gate = comparison.gate
    if gate is None:
        return ""
    return f"Against the baseline {gate.name or gate.baseline}: {'passed' if gate.passed else 'failed'}"


def _gate(pen: Pen, comparison: Comparison) -> Iterator[_Row]:
    gate = comparison.gate
    if gate is None:
        return
    for verdict in gate.verdicts:
        word = pen.text("ok" if verdict.passed else "worse", "green" if verdict.passed else "bold red")
        if not verdict.passed or pen.verbose or len(gate.verdicts) <= FEW_CAUSES:
            yield (
                word,
                Text.assemble(
                    pen.text(f"{verdict.name or verdict.source}: ", "bold"), pen.text(" ".join(verdict.reasons))
                ),
            )
    for each in gate.cannot_tell:
        yield pen.text("-", "dim"), pen.text(each)


def _unread(pen: Pen, comparison: Comparison) -> Iterator[_Row]:
    shown = comparison.unread if pen.verbose else comparison.unread[:FEW_UNREAD]
    for card in shown:
        yield pen.text(wording.name(card)), pen.text(card.error)
    yield from _more(pen, len(comparison.unread) - len(shown))


def _more(pen: Pen, left: int) -> Iterator[_Row]:
    if left > 0:
        yield pen.text("-", "dim"), pen.text(f"{left} more; --verbose shows them", "dim")
