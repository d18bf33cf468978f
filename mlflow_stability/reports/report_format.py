"""What an output format is, and which of them there are.

A module of `formats` that has a `FORMAT` is one; nothing else has to know of it: `--output-format`, the endings of
files that `--output` knows, and `log_report` follow. In: a name and a `Report` or a `Comparison`. Out: text. What a
format needs is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.reports.report import Report
from mlflow_stability.vocabulary.discovery import constants_of
from mlflow_stability.vocabulary.result import Comparison

LAST = 1000


@dataclass(frozen=True, slots=True)
class ReportFormat:
    """One output format."""

    name: str
    """As people type it."""
    run: Callable[[Report], str]
    """Writes what `diagnose` found in one or more runs."""
    comparison: Callable[[Comparison], str]
    """Writes what `compare` found in many."""
    endings: tuple[str, ...] = ()
    """The endings of names of files that ask for it."""
    order: int = LAST
    """Where it stands among the others in help texts."""


FORMATS = {
    each.name: each
    for each in sorted(
        constants_of(f"{__package__}.formats", "FORMAT", ReportFormat), key=lambda each: (each.order, each.name)
    )
}
"""Every format by its name; `rich` is the one for people at a terminal."""
ENDINGS = {ending: each.name for each in FORMATS.values() for ending in each.endings}
"""The format that the name of a file asks for."""


def render(report: Report, name: str) -> str:
    """The report in one of the formats."""
    return FORMATS[name].run(report)


def render_comparison(comparison: Comparison, name: str) -> str:
    """The comparison in one of the formats."""
    return FORMATS[name].comparison(comparison)


def form_of(file: Path) -> str | None:
    """The format that goes into a file of this name, if its ending says so."""
    return ENDINGS.get(file.suffix.lower())
