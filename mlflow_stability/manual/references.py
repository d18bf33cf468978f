"""The references of findings and causes, made from the code that judges."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mlflow_stability.diagnosis.causes.catalog import causes as cause_catalog
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, RULES, documentation, name_of
from mlflow_stability.kinds.documentation import FindingDocumentation
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Severity

INTRODUCTION_TO_FINDINGS = (
    "What `diagnose` and the detectors report: what each finding sees, why it matters, what to do, when it is wrong, "
    "and by which thresholds it is decided. `mlflow-stability explain NAME` prints one."
)
INTRODUCTION_TO_CAUSES = (
    "A finding says what happened; a cause says why. A diagnosis names the likely cause of the finding that decides "
    "its verdict, the evidence for it, and what was ruled out."
)
PICTURES = Path(__file__).with_name("findings")
"""Examples from recorded runs, drawn by `tests/manual/draw_findings.py`."""
FALSE_ALARMS = Path(__file__).with_name("false_alarms.json")
"""Written by `python -m tests.benchmarks false_alarms`."""
_LOSS_QUANTITIES = frozenset({"loss", "val_loss", "score", "val_score"})
"""Quantities of a log with losses alone; findings in other quantities were not tried on such logs."""
_PICTURE = re.compile(r"^!\[.*\n+", re.MULTILINE)


def findings() -> str:
    """Return the page of findings, each with its rules."""
    lines = [
        "# Findings reference",
        "",
        INTRODUCTION_TO_FINDINGS,
        "",
        "Experimental findings are INFO at most: they change no verdict and no exit code.",
        "",
        "| finding | severity | meaning |",
        "| --- | --- | --- |",
    ]
    kinds = [documentation(kind) for kind in KINDS]
    lines += [f"| [{about.name}](#{about.name}) | {_severity(about)} | {_cell(about.sentence)} |" for about in kinds]
    for about in kinds:
        lines += ["", f"## {about.name}", "", *_finding(about)]
        for rule in (*DETECTORS, *ON_REQUEST):
            if rule.kind == about.kind and rule.rule:
                lines += ["", f"### {name_of(rule)}", "", *_finding(documentation(name_of(rule)))]
    return "\n".join(lines) + "\n"


def causes() -> str:
    lines = ["# Causes reference", "", INTRODUCTION_TO_CAUSES]
    for cause in cause_catalog().values():
        lines += ["", f"## {cause.name}", "", cause.meaning, ""]
        lines += [f"**Evidence:** {cause.evidence}", "", f"**When it is wrong:** {cause.wrong}", ""]
        lines += ["**What to do:**", "", *(f"{number}. {remedy}" for number, remedy in enumerate(cause.remedies, 1))]
    return "\n".join(lines) + "\n"


def explained_names() -> tuple[str, ...]:
    """Return every finding and cause that `reference` knows."""
    return (*KINDS, *cause_catalog())


def reference(name: str) -> str | None:
    """Return the reference of one finding or cause; None for an unknown name."""
    page = findings() if name in KINDS else causes() if name in cause_catalog() else ""
    match = re.search(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return None if match is None else _PICTURE.sub("", match[0]).strip() + "\n"


def _finding(about: FindingDocumentation) -> Iterator[str]:
    yield from (about.sentence, "")
    if not about.rule and (PICTURES / f"{about.kind}.png").is_file():
        yield from (f"![A recorded run with {about.kind}](findings/{about.kind}.png)", "")
    for title, text in _paragraphs(about):
        if text:
            yield from (f"**{title}:** {text}", "")
    if about.thresholds:
        yield from ("| threshold | default | meaning |", "| --- | --- | --- |")
        for threshold in about.thresholds:
            yield f"| `{threshold.name}` | {threshold.text} | {_cell(threshold.meaning)} |"
        if about.own_thresholds:
            yield from ("", f"Thresholds of your own: {about.own_thresholds}")


def _paragraphs(about: FindingDocumentation) -> Iterator[tuple[str, str]]:
    """Yield titles and texts, which may be empty."""
    yield "Severity", _severity(about)
    yield "Signals", ", ".join(f"`{quantity}`" for quantity in about.quantities)
    yield "What it sees", about.sees
    yield "Why it matters", about.why
    yield "What to do", about.try_
    yield "When it is wrong", about.wrong
    if not about.rule:
        for rule in RULES:
            if rule.kind == about.kind:
                yield "In a whole curve, afterwards", rule_paragraph(rule, "What it sees")
                yield "When that is wrong", rule_paragraph(rule, "When it is wrong")
        if about.severities[-1] >= Severity.WARNING and about.quantities:
            yield "Measured false alarms", f"{false_alarms_of(about.kind, about.quantities) or 'not measured'}."
    yield "Reference", about.reference


def _severity(about: FindingDocumentation) -> str:
    names = " or ".join(Severity(level).name for level in about.severities)
    return f"{names}, experimental" if about.experimental else names


def rule_paragraph(rule: type[Rule], title: str) -> str:
    paragraphs = (" ".join(text.split()) for text in (inspect.getdoc(rule) or "").split("\n\n"))
    return next((text.removeprefix(f"{title}: ") for text in paragraphs if text.startswith(f"{title}: ")), "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@dataclass(frozen=True, slots=True)
class Measured:
    """False alarms in one set of healthy runs."""

    what: str
    runs: int
    kinds: Collection[str]
    flagged: Mapping[str, int]
    """Number of runs with each finding as a WARNING or worse; kinds without any are left out."""
    loss_alone: bool
    """Whether the runs had nothing but loss curves."""


@cache
def measured() -> tuple[Measured, ...]:
    """Return all measurements of false alarms."""
    return tuple(Measured(**entry) for entry in json.loads(FALSE_ALARMS.read_text(encoding="utf-8")))


def false_alarms_of(kind: str, quantities: Collection[str]) -> str:
    """Return `2 of 128 healthy trainings …; none of 1,600 drawn curves …` for a finding that judges these quantities.

    Empty for a kind that is newer than the measurement. A finding that needs more than a loss curve is given no figure
    from loss curves.
    """
    sets = [data for data in measured() if kind in data.kinds]
    fitting = [data for data in sets if not data.loss_alone or _LOSS_QUANTITIES & set(quantities)]
    return "; ".join(f"{data.flagged.get(kind, 0) or 'none'} of {data.runs:,} {data.what}" for data in fitting)
