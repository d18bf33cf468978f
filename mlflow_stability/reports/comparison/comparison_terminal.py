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
from mlflow_stability.reports.terminal_kit import OUTCOME_STYLES, TerminalWriter, written
from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.reports.words import layer_phrases as layers_wording
from mlflow_stability.reports.words.comparison_names import told_apart
from mlflow_stability.reports.words.comparison_summary import lead, remarks
from mlflow_stability.vocabulary.result.cohort import Cohort
from mlflow_stability.vocabulary.result.comparison import Compared, Comparison

FEW_GROUPS = 8


def show_cohort(out: TerminalWriter, cohort: Cohort) -> None:
    """Seeds, survival, learning rate, and what goes with instability."""
    out.section("Over seeds (final loss: interquartile mean and 95 % interval)", _groups(out, cohort))
    out.section("Time to divergence", _survival(out, cohort))
    if cohort.sensitivity is not None:
        out.section(
            "Learning rate", ((out.text("-", "dim"), out.text(e)) for e in wording.sensitivity(cohort.sensitivity))
        )
    out.section("What goes with instability", _associations(out, cohort))
    out.section("What could not be told", ((out.text("-", "dim"), out.text(each)) for each in cohort.cannot_tell))


def _groups(out: TerminalWriter, cohort: Cohort) -> Iterator[_Row]:
    groups = wording.repeated(cohort)
    shown = groups if out.verbose else groups[:FEW_GROUPS]
    for each in shown:
        tested = f"; worse than the best: {wording.p_value(each.p_value)}" if each.p_value is not None else ""
        yield out.text(each.label), out.text(f"{wording.interval(each.final_loss)}; {wording.group(each)}{tested}")
    if len(shown) < len(groups):
        yield out.text("-", "dim"), out.text(f"{len(groups) - len(shown)} more; --verbose shows them", "dim")
    if groups and wording.not_repeated(cohort):
        yield out.text("-", "dim"), out.text(wording.not_repeated(cohort), "dim")


def _survival(out: TerminalWriter, cohort: Cohort) -> Iterator[_Row]:
    if any(each.lost for each in cohort.survival):
        for each in cohort.survival:
            yield out.text(each.label), out.text(wording.survival(each))


def _associations(out: TerminalWriter, cohort: Cohort) -> Iterator[_Row]:
    for each in cohort.associations:
        yield out.text(" / ".join(each.params), "bold"), out.text(wording.association(each))
    nothing = wording.nothing_named(cohort)
    if nothing:
        yield out.text("-", "dim"), out.text(nothing)
    if cohort.tree is not None and (cohort.associations or cohort.tree.better):
        yield out.text("-", "dim"), out.text(wording.tree(cohort.tree))
        if cohort.tree.better:
            for rule in cohort.tree.rules:
                yield out.text(" ", "dim"), out.text(rule)
    for said in (*cohort.confounded, *((wording.CONFOUNDING,) if cohort.associations else ())):
        yield out.text("!", "yellow"), out.text(said)


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
    return written(lambda console: show(TerminalWriter(console, unicode=unicode, verbose=verbose), comparison), width)


def show(out: TerminalWriter, comparison: Comparison) -> None:
    """Write the comparison."""
    comparison = told_apart(comparison)
    out.rule("compare")
    out.console.print(out.text(comparison.summary, "bold"))
    if comparison.interrupted:
        out.console.print(out.text(wording.unfinished(comparison), "bold yellow"))
    if common := lead(comparison):
        out.console.print(out.text(common))
    _show_runs(out, comparison)
    out.section("Why", _causes(out, comparison))
    if comparison.parting is not None:
        out.paragraph("Where they part", comparison.parting.sentence)
    out.section(layers_wording.SECTION, _layers(out, comparison))
    out.section(wording.differs_title(comparison), _differences(out, comparison))
    out.section(_gate_title(comparison), _gate(out, comparison))
    if comparison.cohort is not None:
        show_cohort(out, comparison.cohort)
    out.section("What could not be read", _unread(out, comparison))
    out.section("Remarks", ((out.text("-", "dim"), out.text(each)) for each in remarks(comparison)))


def _show_runs(out: TerminalWriter, comparison: Comparison) -> None:
    if not comparison.runs:
        return
    most = len(comparison.runs) if out.verbose else STABLEST
    first, last, between = wording.chosen(comparison.runs, most, SICKEST)
    chosen = (*first, *last)
    _show_table(out, COLUMNS, [_cells(out, each) for each in chosen], len(first), between)
    columns = numbers.columns_of([each.card for each in chosen])
    if columns and (out.verbose or len(comparison.runs) <= FEW_RUNS):
        heads = ("run", *(each.title for each in columns))
        rows = [[out.text(wording.name(e.card)), *(out.text(c.say(e.card)) for c in columns)] for e in chosen]
        _show_table(out, heads, rows, len(first), between)
        out.console.print(out.text(numbers.meanings(columns), "dim"))


def _show_table(
    out: TerminalWriter, heads: Sequence[str], rows: Sequence[Sequence[Text]], first: int, between: int
) -> None:
    """As one table, or as several beneath each other where there is no room for all columns."""
    wide = [max(len(title), *(row[place].cell_len for row in rows)) for place, title in enumerate(heads)]
    for places in _parts(wide, out.console.width):
        left = max(LEAST_NAME, out.console.width - sum(wide[each] + GAP for each in places))  # the name gives way
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        table.add_column(heads[0], overflow="crop", no_wrap=True, max_width=left)
        for each in places:
            side = "left" if heads[each] == "outcome" else "right"
            table.add_column(heads[each], no_wrap=True, min_width=wide[each], justify=side)  # type: ignore[arg-type]
        for number, row in enumerate(rows):
            if between and number == first:
                table.add_row(out.text(f"{between} more", "dim"))
            table.add_row(_shortened(row[0], left, out.unicode), *(row[each] for each in places))
        out.console.print()
        out.console.print(table)


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


def _cells(out: TerminalWriter, each: Compared) -> list[Text]:
    card = each.card
    return [
        out.text(wording.name(card)),
        out.text(wording.outcome(card), OUTCOME_STYLES[card.outcome]),
        out.text(wording.steps(card.onset)),
        out.text(wording.short_rate(each.spike_rate)),
        out.text(wording.number(card.final_loss)),
        out.text(wording.number(card.best_loss)),
        out.text(f"{card.wasted:,}" if card.wasted else wording.NOTHING),
    ]


def _causes(out: TerminalWriter, comparison: Comparison) -> Iterator[_Row]:
    """The sickest first."""
    sick = [card for card in reversed(comparison.cards) if card.troubles]
    shown = sick if out.verbose else sick[:FEW_CAUSES]
    for card in shown:
        why = f" {card.cause_statement}" if card.cause_statement else ""
        said = out.text(f"{card.verdict}{why}")
        if card.source != card.name:  # what `diagnose` takes
            said = Text.assemble(said, "\n", out.text(card.source, "dim"))
        yield out.text(wording.name(card), "bold"), said
    yield from _more(out, len(sick) - len(shown))


def _layers(out: TerminalWriter, comparison: Comparison) -> Iterator[_Row]:
    for each in comparison.layers:
        names = wording.two_names(comparison)
        yield out.text(layers_wording.title(each)), out.text(layers_wording.sentences(each, names))


def _differences(out: TerminalWriter, comparison: Comparison) -> Iterator[_Row]:
    differences = wording.differences(comparison)
    params = [each for each in differences if not each.is_tag]
    tags = [each for each in differences if each.is_tag]
    shown = [*params, *tags] if out.verbose else [*params[:FEW_DIFFERENCES], *tags[:FEW_TAGS]]
    for each in shown:
        yield out.text(f"{each.name}{' (tag)' if each.is_tag else ''}"), out.text(wording.values(each))
    yield from _more(out, len(comparison.differences) - len(shown))


def _gate_title(comparison: Comparison) -> str:
    gate = comparison.gate
    if gate is None:
        return ""
    return f"Against the baseline {gate.name or gate.baseline}: {'passed' if gate.passed else 'failed'}"


def _gate(out: TerminalWriter, comparison: Comparison) -> Iterator[_Row]:
    gate = comparison.gate
    if gate is None:
        return
    few = len(gate.verdicts) <= FEW_CAUSES
    told = [each for each in gate.verdicts if not each.passed or out.verbose or few]
    shown = told if out.verbose else told[:FEW_WORSE]
    for verdict in shown:
        word = out.text("ok" if verdict.passed else "worse", "green" if verdict.passed else "bold red")
        called = out.text(f"{verdict.name or verdict.source}: ", "bold")
        yield word, Text.assemble(called, out.text(" ".join(verdict.reasons)))
    yield from _more(out, len(told) - len(shown))
    well = sum(verdict.passed for verdict in gate.verdicts)
    if well and not out.verbose and not few:
        yield out.text("ok", "green"), out.text(f"{well} of {len(gate.verdicts)} not worse.")
    for each in gate.cannot_tell:
        yield out.text("-", "dim"), out.text(each)


def _unread(out: TerminalWriter, comparison: Comparison) -> Iterator[_Row]:
    shown = comparison.unread if out.verbose else comparison.unread[:FEW_UNREAD]
    for card in shown:
        yield out.text(wording.name(card)), out.text(card.error)
    yield from _more(out, len(comparison.unread) - len(shown))


def _more(out: TerminalWriter, left: int) -> Iterator[_Row]:
    if left > 0:
        yield out.text("-", "dim"), out.text(f"{left} more; --verbose shows them", "dim")
