"""`thresholds`: prints every number that findings are decided by, with its default and what it means."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.text import Text

from mlflow_stability.cli.kit.finding_types import checked_kind_if_any, complete_kinds
from mlflow_stability.cli.kit.output import present
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.kinds.catalog import DETECTORS, ON_REQUEST, RULES, name_of
from mlflow_stability.kinds.documentation import Threshold, documentation_of
from mlflow_stability.manual.rule_constants import rule_constants
from mlflow_stability.reports.terminal_kit import TerminalWriter


@click.command("thresholds")
@click.argument("kind", required=False, callback=checked_kind_if_any, shell_complete=complete_kinds)
def command(kind: str | None) -> None:
    """Print every threshold with its default and its meaning.

    KIND is the type of a finding, such as loss_spike; without it, the thresholds of all types are printed, and the
    numbers by which curves are read, causes are told and rollbacks are decided. Detectors judge step by step; rules
    judge whole curves afterwards.
    """
    present(lambda out: _print(out, kind))


def _every() -> Iterator[tuple[str, type[FindingType]]]:
    """All that have thresholds: each detector, and behind those of a type the rules of whole curves."""
    detectors = (*DETECTORS, *ON_REQUEST)
    for kind in dict.fromkeys(each.kind for each in (*detectors, *RULES)):
        yield from ((name_of(each), each) for each in detectors if each.kind == kind)
        yield from ((f"{kind}, in whole curves ({each.__name__})", each) for each in RULES if each.kind == kind)


def _print(out: TerminalWriter, kind: str | None) -> None:
    judged = [(title, documentation_of(each).thresholds) for title, each in _every() if kind in (None, each.kind)]
    sections = [*judged, *(rule_constants() if kind is None else ())]
    shown = 0
    for title, thresholds in sections:
        rows = ((_value(out, one), out.text(one.meaning)) for one in thresholds)
        out.section(title, rows, space=shown > 0, first_at_most=0.45)
        shown += bool(thresholds)
    if not shown:
        out.paragraph("No thresholds", "This finding is reported as it happens, and decided by no number.")


def _value(out: TerminalWriter, threshold: Threshold) -> Text:
    return Text.assemble(out.text(threshold.name), " = ", out.text(threshold.text, "cyan"))
