"""`presets`: prints what each preset sets, beside the defaults."""

from __future__ import annotations

import click
from rich.padding import Padding
from rich.table import Table

from mlflow_stability.cli.kit.output import present
from mlflow_stability.manual.presets import COLUMNS, PRECEDENCE, WITH_ROLLBACK, WITHOUT_ROLLBACK, preset_rows
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.presets import PRESETS


@click.command("presets")
def command() -> None:
    """Print what each preset sets, beside the defaults.

    autolog(preset=NAME) gives these instead of the defaults, with or without rollback.
    """
    present(_print)


def _print(out: TerminalWriter) -> None:
    out.section("Presets", ((out.text(each.name, "cyan"), out.text(each.meaning)) for each in PRESETS.values()))
    rows = tuple(preset_rows())
    for group in (WITHOUT_ROLLBACK, WITH_ROLLBACK):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("", *COLUMNS):
            table.add_column(title, no_wrap=True)
        for each in rows:
            if each.group == group:
                usual, *others = each.values
                changed = (out.text(value, "" if value == usual else "cyan") for value in others)
                table.add_row(out.text(each.name), out.text(usual), *changed)
        out.console.print()
        out.console.print(out.text(group, "bold"))
        out.console.print(Padding(table, (0, 0, 0, 2)))
    out.paragraph("Precedence", PRECEDENCE)
