"""Show a comparison on a terminal.

Runs are ordered by stability; of very many, the most and the least stable are shown. It fits into 80 columns and no
number is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports import comparison_phrases as wording
from mlflow_stability.reports.comparison_sections import comparison_sections, lead, with_distinct_names
from mlflow_stability.reports.terminal_kit import OUTCOME_STYLES, TerminalWriter, draw_section, written
from mlflow_stability.vocabulary.result import Compared, Comparison
from mlflow_stability.vocabulary.text.phrases import counted

FILE_WIDTH = 100
MAX_STABLEST, MAX_UNSTABLE = 5, 10
MAX_RUNS_WITH_NUMBERS = 6  # up to this many runs the second table is shown without --verbose
COLUMN_GAP = 2
MIN_NAME_WIDTH = 8
WANTED_NAME_WIDTH = 12  # columns go into a table of their own where a name would have less
COLUMNS = ("run", "outcome", "first issue", "spikes/10k", "final", "best", "lost steps")


def render(comparison: Comparison, *, verbose: bool = False, width: int = FILE_WIDTH, unicode: bool = True) -> str:
    return written(lambda console: show(TerminalWriter(console, unicode=unicode, verbose=verbose), comparison), width)


def show(out: TerminalWriter, comparison: Comparison) -> None:
    comparison = with_distinct_names(comparison)
    out.rule("compare")
    out.console.print(out.text(comparison.summary, "bold"))
    if comparison.interrupted:
        out.console.print(out.text(wording.unfinished(comparison), "bold yellow"))
    if common := lead(comparison):
        out.console.print(out.text(common))
    if comparison.runs:
        most = len(comparison.runs) if out.verbose else MAX_STABLEST
        first, last, between = wording.chosen(comparison.runs, most, MAX_UNSTABLE)
        runs = (*first, *last)
        _show_table(out, COLUMNS, [_cells(out, run) for run in runs], len(first), between)
        columns = wording.number_columns([run.card for run in runs])
        if columns and (out.verbose or len(comparison.runs) <= MAX_RUNS_WITH_NUMBERS):
            heads = ("run", *(column.title for column in columns))
            rows = [
                [out.text(wording.name(run.card)), *(out.text(column.text(run.card)) for column in columns)]
                for run in runs
            ]
            _show_table(out, heads, rows, len(first), between)
            out.console.print(out.text(wording.meanings(columns), "dim"))
    for section in comparison_sections(comparison).all():
        draw_section(out, section)


def _show_table(
    out: TerminalWriter, heads: Sequence[str], rows: Sequence[Sequence[Text]], first: int, between: int
) -> None:
    """Show one table, or several beneath each other where there is no room for all columns."""
    widths = [max(len(title), *(row[column].cell_len for row in rows)) for column, title in enumerate(heads)]
    room = out.console.width - min(widths[0], WANTED_NAME_WIDTH)
    groups: list[list[int]] = [[]]  # the columns that share a table
    for column in range(1, len(widths)):
        if groups[-1] and sum(widths[place] + COLUMN_GAP for place in (*groups[-1], column)) > room:
            groups.append([])
        groups[-1].append(column)
    for columns in groups:
        # The name gives way to the numbers.
        name_width = max(MIN_NAME_WIDTH, out.console.width - sum(widths[column] + COLUMN_GAP for column in columns))
        table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="dim")
        table.add_column(heads[0], overflow="crop", no_wrap=True, max_width=name_width)
        for column in columns:
            side = "left" if heads[column] == "outcome" else "right"
            table.add_column(heads[column], no_wrap=True, min_width=widths[column], justify=side)  # type: ignore[arg-type]
        for number, row in enumerate(rows):
            if between and number == first:
                table.add_row(out.text("…" if out.unicode else "...", "dim"))
            table.add_row(_shortened(row[0], name_width, out.unicode), *(row[column] for column in columns))
        out.console.print()
        out.console.print(table)
    if between:
        out.console.print(out.text(f"{counted(between, 'more run')}; --verbose shows them", "dim"))


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


def _cells(out: TerminalWriter, run: Compared) -> list[Text]:
    card = run.card
    return [
        out.text(wording.name(card)),
        out.text(wording.outcome(card), OUTCOME_STYLES[card.outcome]),
        out.text(wording.steps(card.onset)),
        out.text(wording.rate(run.spike_rate, "-")),
        out.text(wording.number(card.final_loss)),
        out.text(wording.number(card.best_loss)),
        out.text(f"{card.wasted:,}" if card.wasted else wording.NOTHING),
    ]
