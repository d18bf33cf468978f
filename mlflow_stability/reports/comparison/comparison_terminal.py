"""Shows a comparison on a terminal.

In: a `Comparison` and a console. Out: runs ordered by stability, causes, differences, the baseline gate, and what the
runs have in common. Guarantees: it fits into 80 columns and no number is cut; what colour says is said in words too; of
very many runs the most and the least stable are shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.comparison import comparison_numbers as numbers
from mlflow_stability.reports.comparison.sections import comparison_sections
from mlflow_stability.reports.terminal_kit import OUTCOME_STYLES, TerminalWriter, written
from mlflow_stability.reports.terminal_kit.section_rows import draw_section
from mlflow_stability.reports.words import comparison_phrases as wording
from mlflow_stability.reports.words.comparison_names import told_apart
from mlflow_stability.reports.words.comparison_summary import lead
from mlflow_stability.vocabulary.result import Compared, Comparison
from mlflow_stability.vocabulary.text import counted

WIDTH_OF_A_FILE = 100
STABLEST, SICKEST = 5, 10
FEW_RUNS = 6
"""Up to so many the second table is shown without being asked for."""
GAP, LEAST_NAME, ENOUGH_NAME = 2, 8, 12
"""Between columns; what a name has at least; columns go into a table of their own where it would have less."""
COLUMNS = ("run", "outcome", "first issue", "spikes/10k", "final", "best", "lost steps")


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
    for section in comparison_sections(comparison).all():
        draw_section(out, section)


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
                table.add_row(out.text("…" if out.unicode else "...", "dim"))
            table.add_row(_shortened(row[0], left, out.unicode), *(row[each] for each in places))
        out.console.print()
        out.console.print(table)
    if between:
        out.console.print(out.text(f"{counted(between, 'more run')}; --verbose shows them", "dim"))


def _parts(wide: Sequence[int], room: int) -> list[list[int]]:
    """Which columns share one table beside the name."""
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
