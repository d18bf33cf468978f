"""The references of findings and of causes, made from what stands beside the code that judges.

In: the detectors, the rules of whole curves and the causes. Out: a page of each, as Markdown. Guarantees: every finding
and every cause that can be named is on its page, with the thresholds that hold.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from mlflow_stability.diagnosis.causes.catalog import causes as every_cause
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, RULES, documentation, name_of
from mlflow_stability.kinds.documentation import FindingDocumentation
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.manual.false_alarms import false_alarms_of
from mlflow_stability.vocabulary.result import Severity

INTRODUCTION_TO_FINDINGS = (
    "What `diagnose` and the detectors report: what each finding sees, why it matters, what to do, when it is wrong, "
    "and by which thresholds it is decided. `mlflow-stability explain NAME` prints one."
)
INTRODUCTION_TO_CAUSES = (
    "A finding says what happened; a cause says why. A diagnosis names the likely cause of the finding that decides "
    "its verdict, the evidence for it, and what was ruled out."
)

_PICTURE = re.compile(r"^!\[.*\n+", re.MULTILINE)

PICTURES = Path(__file__).with_name("findings")
"""Examples from recorded runs, drawn by `tests/manual/draw_findings.py`."""


def findings() -> str:
    """Every finding, with the rules that find it."""
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
    lines += [f"| [{each.name}](#{each.name}) | {_severity(each)} | {_cell(each.sentence)} |" for each in kinds]
    for each in kinds:
        lines += ["", f"## {each.name}", "", *_finding(each)]
        for rule in (*DETECTORS, *ON_REQUEST):
            if rule.kind == each.kind and rule.rule:
                lines += ["", f"### {name_of(rule)}", "", *_finding(documentation(name_of(rule)))]
    return "\n".join(lines) + "\n"


def causes() -> str:
    """Every cause."""
    lines = [
        "# Causes reference",
        "",
        INTRODUCTION_TO_CAUSES,
    ]
    for each in every_cause().values():
        lines += ["", f"## {each.name}", "", each.meaning, ""]
        lines += [f"**Evidence:** {each.evidence}", "", f"**When it is wrong:** {each.wrong}", ""]
        lines += ["**What to do:**", "", *(f"{number}. {remedy}" for number, remedy in enumerate(each.remedies, 1))]
    return "\n".join(lines) + "\n"


def explained_names() -> tuple[str, ...]:
    """Every finding and cause that `section` knows."""
    return (*KINDS, *every_cause())


def section(name: str) -> str | None:
    """What the references say of one finding or cause; None where there is none."""
    page = findings() if name in KINDS else causes() if name in every_cause() else ""
    found = re.search(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return None if found is None else _PICTURE.sub("", found[0]).strip() + "\n"


def _finding(about: FindingDocumentation) -> Iterator[str]:
    yield about.sentence
    yield ""
    if not about.rule and (PICTURES / f"{about.kind}.png").is_file():
        yield f"![A recorded run with {about.kind}](findings/{about.kind}.png)"
        yield ""
    facts = [("Severity", _severity(about)), ("Signals", ", ".join(f"`{each}`" for each in about.quantities))]
    facts += [("What it sees", about.sees), ("Why it matters", about.why), ("What to do", about.try_)]
    facts += [("When it is wrong", about.wrong)]
    if not about.rule:
        for rule in RULES:
            if rule.kind == about.kind:
                facts += [("In a whole curve, afterwards", _paragraph(rule, "What it sees"))]
                facts += [("When that is wrong", _paragraph(rule, "When it is wrong"))]
        if about.severities[-1] >= Severity.WARNING and about.quantities:
            measured = false_alarms_of(about.kind, about.quantities) or "not measured"
            facts += [("Measured false alarms", f"{measured}.")]
    facts += [("Reference", about.reference)]
    for title, text in facts:
        if text:
            yield f"**{title}:** {text}"
            yield ""
    if about.thresholds:
        yield "| threshold | default | meaning |"
        yield "| --- | --- | --- |"
        for each in about.thresholds:
            yield f"| `{each.name}` | {each.text} | {_cell(each.meaning)} |"
        if about.own_thresholds:
            yield ""
            yield f"Thresholds of your own: {about.own_thresholds}"


def _severity(about: FindingDocumentation) -> str:
    named = " or ".join(Severity(each).name for each in about.severities)
    return f"{named}, experimental" if about.experimental else named


def _paragraph(rule: type[Rule], title: str) -> str:
    paragraphs = (" ".join(each.split()) for each in (inspect.getdoc(rule) or "").split("\n\n"))
    return next((each.removeprefix(f"{title}: ") for each in paragraphs if each.startswith(f"{title}: ")), "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
