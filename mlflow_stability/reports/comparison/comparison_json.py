"""Writes a comparison for programs: one JSON document.

In: a `Comparison`. Out: ASCII text that follows ``comparison.schema.json`` beside this file. Guarantees: numbers that
JSON does not know are the strings "nan", "inf" and "-inf"; what could not be told is null; the same comparison gives
the same bytes. Curves are left out: they are the metrics of the runs.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib import resources
from typing import Any

from mlflow_stability.vocabulary.measured import LayerComparison
from mlflow_stability.vocabulary.result import Compared, Comparison, Mark, Severity

SCHEMA_VERSION = 2
_DRAWN = frozenset({"sketch", "course", "error"})


def render(comparison: Comparison) -> str:
    """The document as text."""
    return json.dumps(document(comparison), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The JSON schema of the document, as it is shipped."""
    text = resources.files(__package__).joinpath("comparison.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def document(comparison: Comparison) -> dict[str, Any]:
    """The document as dictionaries and lists."""
    gate = comparison.gate
    return {
        "schema_version": SCHEMA_VERSION,
        "summary": comparison.summary,
        "asked": comparison.asked,
        "interrupted": comparison.interrupted,
        "runs": [_run(each) for each in comparison.runs],
        "errors": [{"source": card.source, "message": card.error} for card in comparison.unread],
        "differences": [_plain(asdict(each)) for each in comparison.differences],
        "first_difference": None
        if comparison.first_difference is None
        else _plain(asdict(comparison.first_difference)),
        "layers": [_layers(each) for each in comparison.layers],
        "gate": None if gate is None else {"passed": gate.passed, **_plain(asdict(gate))},
        "cohort": None if comparison.cohort is None else _cohort(comparison),
        "notes": list(comparison.notes),
    }


def _run(each: Compared) -> dict[str, Any]:
    card = each.card
    known = {name: value for name, value in asdict(card).items() if name not in _DRAWN}
    known["severity"] = card.severity.name
    known["marks"] = [_mark(mark) for mark in card.marks]
    known["unstable"] = card.unstable
    known["lost"] = card.lost
    known["recovery_steps"] = list(card.recovery_steps)
    known["spike_rate"] = None if each.spike_rate is None else asdict(each.spike_rate)
    plain: dict[str, Any] = _plain(known)
    return plain


def _layers(each: LayerComparison) -> dict[str, Any]:
    """Without the pictures: of each cell the runs' own metrics say more."""
    plain: dict[str, Any] = _plain(
        {
            "quantity": each.quantity,
            "layers": len(each.layers),
            "aligned": each.aligned,
            "zeros": list(each.zeros),
            "steps_a_column": each.width,
            "farthest": None if each.farthest is None else asdict(each.farthest),
            "broken": [None if one is None else asdict(one) for one in each.broken],
        }
    )
    return plain


def _mark(mark: Mark) -> dict[str, Any]:
    return {**asdict(mark), "severity": mark.severity.name}


def _cohort(comparison: Comparison) -> dict[str, Any]:
    known = asdict(comparison.cohort)  # type: ignore[arg-type]
    del known["plots"]  # the parameters and losses of the runs, once more
    plain: dict[str, Any] = _plain(known)
    return plain


def _plain(value: Any) -> Any:
    """With lists for tuples, and words for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value.name if isinstance(value, Severity) else value
