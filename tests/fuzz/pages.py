"""Target: reports on runs in which every text from outside is hostile."""

from __future__ import annotations

import csv as spreadsheet
import io
import json
import re
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from fuzz.target import Drawn, Target, promised
from reports.hostile import HOSTILE
from reports.run.test_html_page import ATTRIBUTES, TAGS, Page
from reports.samples import SEVERAL

from mlflow_stability.reports.formats import csv, markdown
from mlflow_stability.reports.formats import json as json_format
from mlflow_stability.reports.html_kit.pages import run_page
from mlflow_stability.reports.report import Failure, Report
from mlflow_stability.vocabulary.result import Diagnosis, Finding

_OURS = frozenset(
    {"rule", "trend", "stability", "pattern", "shape", "health", "outcome", "status", "certainty", "format"}
)
"""Texts that only this package writes, of a few words that templates look up."""
_RAW = re.compile(r"(?i)<\s*/?\s*(?:script|img|iframe|object|embed|link|base|form)\b|javascript:|srcdoc=")


def page_targets() -> dict[str, Target]:
    """Return the target."""
    return {"reports": Target(20, lambda rng: Drawn("report.json", str(rng.getrandbits(64)).encode()), _report)}


def hostile_text(rng: Random) -> str:
    """Return markup, control characters and formulas behind each other."""
    if rng.random() < 0.2:
        return "".join(
            chr(rng.choice((rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x10FFFF)))) for _ in range(20)
        )
    return "".join(rng.choice(HOSTILE) for _ in range(rng.randrange(1, 5)))


def with_hostile_texts(value: Any, rng: Random) -> Any:
    """Return a value of the same types, most texts in it hostile."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return hostile_text(rng) if rng.random() < 0.8 else value
    if isinstance(value, tuple):
        return tuple(with_hostile_texts(item, rng) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: with_hostile_texts(getattr(value, field.name), rng)
            for field in fields(value)
            if field.init and field.name not in _OURS
        }
        return replace(value, **changed)
    return value


def _report(drawn: Drawn, _folder: Path) -> bool:
    rng = Random(int(drawn.content))
    diagnoses: tuple[Diagnosis, ...] = with_hostile_texts(SEVERAL.diagnoses, rng)
    report = Report(diagnoses, (Failure(hostile_text(rng), hostile_text(rng)),))
    check_page(run_page(report))
    document = json.loads(json_format.run(report))
    promised(len(document["issues"]) == _findings(diagnoses), "JSON has not every finding")
    for row in spreadsheet.reader(io.StringIO(csv.run(report))):
        promised(not any(cell.lstrip().startswith(("=", "@", "+")) for cell in row), f"a formula in {row}")
    page = markdown.run(report)
    promised(all(character.isprintable() or character == "\n" for character in page), "control characters in Markdown")
    promised(not re.search(r"(?<!\\)<(?:script|img)", page), "HTML in Markdown")
    return True


def _findings(diagnoses: tuple[Diagnosis, ...]) -> int:
    findings: list[Finding] = [finding for diagnosis in diagnoses for finding in diagnosis.findings]
    return len(findings)


def check_page(text: str) -> None:
    """Check that a page is well formed, with tags, attributes and links of the templates alone."""
    page = Page(text)
    promised(page.tags <= TAGS, f"foreign tags {page.tags - TAGS}")
    promised(page.attributes <= ATTRIBUTES, f"foreign attributes {page.attributes - ATTRIBUTES}")
    promised({link.removeprefix("#") for link in page.links} <= set(page.ids), f"foreign links in {page.links}")
    markup = "".join(re.findall(r"<[^>]*>", text))
    promised(not _RAW.search(markup), "a script in the page")
