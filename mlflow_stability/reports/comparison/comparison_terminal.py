"""Shows a comparison to a person at a terminal.

In: a `Comparison` and a console. Out: the runs in order of stability, why the sickest are sick, where two part and how
far their layers do, what differs, the gate, and what the runs have in common. Promised: it fits into 80 columns, and no
number is cut; what only colour says is said in words too; of very many runs the stablest and the sickest are shown.

Shows on a terminal what many runs have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.comparison import comparison_numbers as numbers
from mlflow_stability.reports.terminal_kit import OUTCOME_STYLES, Pen, written
from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.reports.words import layer_phrases as layers_wording
from mlflow_stability.reports.words.comparison_names import told_apart
from mlflow_stability.reports.words.comparison_summary import lead, remarks
from mlflow_stability.vocabulary.result.cohort import Cohort
from mlflow_stability.vocabulary.result.comparison import Compared, Comparison

FEW_GROUPS = 8


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


WIDTH_OF_A_FILE = 100
STABLEST, SICKEST = 5, 10
FEW_RUNS = 6
"""Up to so many the second table is shown without being asked for."""
FEW_CAUSES, FEW_WORSE, FEW_DIFFERENCES, FEW_UNREAD, FEW_TAGS = 5, 10, 12, 10, 4
GAP, LEAST_NAME, ENOUGH_NAME = 2, 8, 12
"""Between columns; what a name has at least; columns go into a table of their own where it would have less."""
COLUMNS = ("run", "outcome", "since", "spikes/10k", "final", "best", "wasted")
_Row = tuple[Text, Text]


def render(comparison: Comparison, *, verbose: bool = False, width: int = WIDTH_OF_A_FILE, unicode: bool = True) -> str:
    """The comparison as plain text, for a file or a pipe."""
    return written(lambda console: show(Pen(console, unicode=unicode, verbose=verbose), comparison), width)


def show(pen: Pen, comparison: Comparison) -> None:
    """Write the comparison."""
    comparison = told_apart(comparison)
    pen.rule("compare")
    pen.console.print(pen.text(comparison.summary, "bold"))
    if comparison.interrupted:
        pen.console.print(pen.text(wording.unfinished(comparison), "bold yellow"))
    if common := lead(comparison):
        pen.console.print(pen.text(common))
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
    pen.section("Remarks", ((pen.text("-", "dim"), pen.text(each)) for each in remarks(comparison)))


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
    """As one table, or as several beneath each other where there is no room for all columns."""
    wide = [max(len(title), *(row[place].cell_len for row in rows)) for place, title in enumerate(heads)]
    for places in _parts(wide, pen.console.width):
        left = max(LEAST_NAME, pen.console.width - sum(wide[each] + GAP for each in places))  # the name gives way
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        table.add_column(heads[0], overflow="crop", no_wrap=True, max_width=left)
        for each in places:
            side = "left" if heads[each] == "outcome" else "right"
            table.add_column(heads[each], no_wrap=True, min_width=wide[each], justify=side)  # type: ignore[arg-type]
        for number, row in enumerate(rows):
            if between and number == first:
                table.add_row(pen.text(f"{between} more", "dim"))
            table.add_row(_shortened(row[0], left, pen.unicode), *(row[each] for each in places))
        pen.console.print()
        pen.console.print(table)


def _parts(wide: Sequence[int], room: int) -> list[list[int]]:
    """Which columns stand in one table beside the name."""
    name = min(wide[0], ENOUGH_NAME)
    parts: list[list[int]] = [[]]
    for place in range(1, len(wide)):
        if parts[-1] and name + sum(wide[each] + GAP for each in (*parts[-1], place)) > room:
            parts.append([])
        parts[-1].append(place)
    return parts


def _shortened(name: Text, width: int, unicode: bool) -> Text:
    """Its beginning and its end: names of a sweep often differ in their last letters alone."""
    if name.cell_len <= width:
        return name
    gap = "…" if unicode else ".."
    room = width - len(gap)
    end = name.plain[-room:]
    while cell_len(end) > room // 2:
        end = end[1:]
    return Text(f"{set_cell_size(name.plain, room - cell_len(end)).rstrip()}{gap}{end}", name.style)


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
        said = pen.text(f"{card.verdict}{why}")
        if card.source != card.name:  # what `diagnose` takes
            said = Text.assemble(said, "\n", pen.text(card.source, "dim"))
        yield pen.text(wording.name(card), "bold"), said
    yield from _more(pen, len(sick) - len(shown))


def _layers(pen: Pen, comparison: Comparison) -> Iterator[_Row]:
    for each in comparison.layers:
        names = wording.two_names(comparison)
        yield pen.text(layers_wording.title(each)), pen.text(layers_wording.sentences(each, names))


def _differences(pen: Pen, comparison: Comparison) -> Iterator[_Row]:
    differences = wording.differences(comparison)
    params = [each for each in differences if not each.is_tag]
    tags = [each for each in differences if each.is_tag]
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
    few = len(gate.verdicts) <= FEW_CAUSES
    told = [each for each in gate.verdicts if not each.passed or pen.verbose or few]
    shown = told if pen.verbose else told[:FEW_WORSE]
    for verdict in shown:
        word = pen.text("ok" if verdict.passed else "worse", "green" if verdict.passed else "bold red")
        called = pen.text(f"{verdict.name or verdict.source}: ", "bold")
        yield word, Text.assemble(called, pen.text(" ".join(verdict.reasons)))
    yield from _more(pen, len(told) - len(shown))
    well = sum(verdict.passed for verdict in gate.verdicts)
    if well and not pen.verbose and not few:
        yield pen.text("ok", "green"), pen.text(f"{well} of {len(gate.verdicts)} not worse.")
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
