"""What is known of a kind of trouble, as people read it: made from the docstrings and fields of its class.

In: the class of a judgement. Out: a `FindingDocumentation`. Guarantees: nothing is written twice; what is explained is
what stands beside the code that judges.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, fields
from itertools import pairwise

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.detectors.rendered_numbers import rendered
from mlflow_stability.vocabulary.result import Remedy
from mlflow_stability.vocabulary.result.severity import Severity

SECTIONS = ("What it sees", "Why it matters", "What to try", "When it is wrong", "Reference")
"""The paragraphs of a judgement's docstring, after its first sentence."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that a judgement is made by."""

    name: str
    value: float | bool | tuple[float, ...]
    meaning: str

    @property
    def said(self) -> str:
        """The value as people read it: ``5 to 8`` for two of them."""
        numbers = self.value if isinstance(self.value, tuple) else (self.value,)
        return " to ".join(f"{each:g}" if type(each) in (int, float) else str(each) for each in numbers)


@dataclass(frozen=True, slots=True)
class FindingDocumentation:
    """Everything that is to be said of a kind of trouble, or of one rule that finds it."""

    kind: str
    rule: str
    """``classic`` and the like; empty for the rule that is used unless another is asked for."""
    sentence: str
    """What has happened, in one sentence."""
    sees: str
    why: str
    try_: str
    wrong: str
    reference: str
    severities: tuple[Severity, ...]
    """How bad it can be, the mildest first."""
    experimental: bool
    quantities: tuple[str, ...]
    """Empty for what is seen from outside of the series."""
    thresholds: tuple[Threshold, ...]
    remedies: tuple[Remedy, ...]
    own_thresholds: str
    """How to give thresholds of your own, in Python; empty where there are none."""

    @property
    def name(self) -> str:
        """``loss_spike`` or ``loss_spike:classic``: how it is asked for."""
        return f"{self.kind}:{self.rule}" if self.rule else self.kind


def documentation_of(judgement: type[FindingType]) -> FindingDocumentation:
    """Read the documentation of a judgement's class."""
    sentence, *paragraphs = (inspect.getdoc(judgement) or "").split("\n\n")
    said = dict(" ".join(each.split()).split(": ", 1) for each in paragraphs if ": " in each)
    return FindingDocumentation(
        kind=judgement.kind,
        rule=judgement.rule,
        sentence=" ".join(sentence.split()),
        sees=said.get(SECTIONS[0], ""),
        why=said.get(SECTIONS[1], ""),
        try_=said.get(SECTIONS[2], ""),
        wrong=said.get(SECTIONS[3], ""),
        reference=said.get(SECTIONS[4], ""),
        severities=judgement.severities,
        experimental=judgement.experimental,
        quantities=getattr(judgement, "quantities", ()),
        thresholds=_thresholds(judgement),
        remedies=judgement.remedies,
        own_thresholds=_own_thresholds(judgement),
    )


def _own_thresholds(judgement: type[FindingType]) -> str:
    """The import and the call, with the default of the first threshold."""
    if not issubclass(judgement, Detector) or not fields(judgement):
        return ""
    name, first = judgement.__name__, _thresholds(judgement)[0]
    call = f"autolog(detectors=[{name}({first.name}={first.said})])"
    return f"`from mlflow_stability.kinds import {name}`, then `{call}` with your own number."


def _field_docstrings(cls: type) -> dict[str, str]:
    (body,) = (node.body for node in ast.parse(inspect.getsource(cls)).body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: " ".join(str(ast.literal_eval(under.value)).split())
        for field, under in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(under, ast.Expr)
    }


def _thresholds(judgement: type[FindingType]) -> tuple[Threshold, ...]:
    """The fields with what is written under each, its own before those that it inherits."""
    meanings: dict[str, str] = {}
    for cls in judgement.__mro__:
        if cls is FindingType:
            break
        meanings = _field_docstrings(cls) | meanings
    usual, own = judgement(), vars(judgement).get("__annotations__", {})
    values = {field.name: getattr(usual, field.name) for field in fields(usual)}
    values = {name: values[name] for name in sorted(values, key=lambda name: name not in own)}
    return tuple(
        Threshold(name, value, " ".join(rendered(meanings.get(name, ""), values, judgement.__module__).split()))
        for name, value in values.items()
    )
