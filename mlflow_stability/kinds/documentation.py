"""Documentation of detectors, rules and types of findings, from the docstrings and fields of their classes."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType, rendered
from mlflow_stability.vocabulary.discovery import note_of
from mlflow_stability.vocabulary.result import Remedy, Severity

PARAGRAPHS = ("What it sees", "Why it matters", "What to try", "When it is wrong", "Reference")
"""The paragraphs of a docstring, after its first sentence."""


@dataclass(frozen=True, slots=True)
class Threshold:
    name: str
    value: float | bool | tuple[float, ...]
    meaning: str

    @property
    def text(self) -> str:
        """The value in words: ``5 to 8`` for two numbers."""
        numbers = self.value if isinstance(self.value, tuple) else (self.value,)
        return " to ".join(f"{number:g}" if type(number) in (int, float) else str(number) for number in numbers)


@dataclass(frozen=True, slots=True)
class FindingDocumentation:
    kind: str
    rule: str  # ``classic``, or empty for the default rule
    sentence: str  # what has happened, in one sentence
    sees: str
    why: str
    try_: str
    wrong: str
    reference: str
    severities: tuple[Severity, ...]  # the severities that it can have, the mildest first
    experimental: bool
    quantities: tuple[str, ...]  # empty for what no detector finds
    thresholds: tuple[Threshold, ...]
    remedies: tuple[Remedy, ...]
    own_thresholds: str  # how to set a threshold in Python; empty without thresholds

    @property
    def name(self) -> str:
        """Its name in a `detectors=` argument: ``loss_spike`` or ``loss_spike:classic``."""
        return f"{self.kind}:{self.rule}" if self.rule else self.kind


def documentation_of(finding_type: type[FindingType]) -> FindingDocumentation:
    sentence, *paragraphs = (inspect.getdoc(finding_type) or "").split("\n\n")
    texts = dict(" ".join(paragraph.split()).split(": ", 1) for paragraph in paragraphs if ": " in paragraph)
    sees, why, try_, wrong, reference = (texts.get(title, "") for title in PARAGRAPHS)
    meanings: dict[str, str] = {}
    for cls in finding_type.__mro__:
        if cls is FindingType:
            break
        meanings = _field_notes(cls) | meanings
    usual, own = finding_type(), vars(finding_type).get("__annotations__", {})
    values = {field.name: getattr(usual, field.name) for field in fields(usual)}
    thresholds = tuple(
        Threshold(name, value, " ".join(rendered(meanings.get(name, ""), values, finding_type.__module__).split()))
        for name, value in sorted(values.items(), key=lambda item: item[0] not in own)  # its own before inherited ones
    )
    own_thresholds = ""
    if issubclass(finding_type, Detector) and thresholds:
        name, first = finding_type.__name__, thresholds[0]
        call = f"autolog(detectors=[{name}({first.name}={first.text})])"
        own_thresholds = f"`from mlflow_stability.kinds import {name}`, then `{call}` with your own number."
    return FindingDocumentation(
        kind=finding_type.kind,
        rule=finding_type.rule,
        sentence=" ".join(sentence.split()),
        sees=sees,
        why=why,
        try_=try_,
        wrong=wrong,
        reference=reference,
        severities=finding_type.severities,
        experimental=finding_type.experimental,
        quantities=getattr(finding_type, "quantities", ()),
        thresholds=thresholds,
        remedies=finding_type.remedies,
        own_thresholds=own_thresholds,
    )


@cache
def _field_notes(cls: type) -> dict[str, str]:
    source = inspect.getsource(cls)
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: note
        for field, below in pairwise([*body, ast.Pass()])
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if (note := note_of(field, below, source.splitlines()))
    }
