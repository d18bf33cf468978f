"""A threshold is written once, in its field: the documentation of detectors and rules takes the number from there."""

from __future__ import annotations

import ast
import inspect
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from architecture.repository import ROOT
from kinds.changed_thresholds import CLASSES, changed, default_of

from mlflow_stability.detectors.finding_type import FindingType, rendered
from mlflow_stability.kinds.catalog import RULES, TYPES
from mlflow_stability.kinds.documentation import documentation_of
from mlflow_stability.vocabulary.discovery import note_of

PLACEHOLDER = re.compile(r"\{[^}]*\}")
NUMBER = re.compile(r"(?<![\w.,:/(-])(\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)( %)?(?![\w-]|\.\d|,\d)")
"""A number of a sentence, and whether it is a percentage; none of a range, a name, a reference or a format."""
SEEN = ("What it sees", "When it is wrong")
"""The paragraphs that say when something is found; the others advise, and name what was measured."""
MEASURED = re.compile(r"[^.]*\b(?:healthy|measured|drawn|examples|\d+ of \d+)\b[^.]*(?:\.\d[^.]*)*\.", re.IGNORECASE)
"""A sentence that says what was counted with today's thresholds."""


def template(cls: type[Any]) -> ast.ClassDef:
    """The class as it is written, with the names of thresholds in braces."""
    (node,) = (item for item in ast.parse(inspect.getsource(cls)).body if isinstance(item, ast.ClassDef))
    return node


def texts(cls: type[Any]) -> Iterator[str]:
    """The sentences that say when something is found, and the notes on the fields."""
    node = template(cls)
    first, *paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    yield first
    yield from (paragraph for paragraph in paragraphs if paragraph.startswith(SEEN))
    lines = inspect.getsource(cls).splitlines()
    for field, under in pairwise([*node.body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign):
            yield note_of(field, under, lines)


def forms(value: Any) -> Iterator[tuple[float, bool]]:
    """A threshold as a sentence may give it: as it is, as a share, as a rise, in nats; the second: in percent."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool):
            continue
        yield from ((number, False), (100 * number, True))
        if 1 < number < 3:
            yield 100 * (number - 1), True
        if 0.5 < number < 1:
            yield 100 * (1 - number), True
        if isinstance(number, float) and 0 < number < 12:
            yield from ((math.exp(number), False), (100 * math.expm1(number), True))


def copied(cls: type[Any]) -> list[str]:
    """Numbers in the texts of a class that are one of its thresholds."""
    values = [form for field in fields(cls) for form in forms(field.default)]
    result = []
    for text in texts(cls):
        sentences = MEASURED.sub("", " ".join(PLACEHOLDER.sub("", text).split()))
        for number, percent in NUMBER.findall(sentences):
            value = float(number.replace(",", ""))
            alike = any(
                is_percent == bool(percent) and math.isclose(value, x, rel_tol=2e-3) for x, is_percent in values
            )
            if alike and value not in (0, 1):
                result.append(f"{number}{percent}: {sentences[:60]}")
    return result


def unmentioned() -> list[str]:
    """The thresholds whose class says the same when they are changed by a quarter."""
    result = []
    for cls in CLASSES.values():
        text = ast.get_docstring(template(cls)) or ""
        usual = {field.name: field.default for field in fields(cls)}
        message = rendered(text, usual, cls.__module__)
        for name, value in usual.items():
            others = [rendered(text, {**usual, name: other}, cls.__module__) for other in changed(value)]
            if message in others:
                result.append(f"{cls.__name__}.{name}")
    return result


@pytest.mark.parametrize("cls", CLASSES.values(), ids=lambda cls: cls.__name__)
def test_no_text_of_a_class_copies_one_of_its_thresholds(cls: type[Any]) -> None:
    assert copied(cls) == [], "write the name of the threshold in braces: {threshold}, {kept:percent}"


NOTICED = {
    "LossSpike.share_of_tail": "loss/test_loss_spike.py::test_it_says_what_happened_with_numbers",
    "LossSpike.threshold_alone": "loss/test_loss_spike.py::test_one_or_two_high_losses_are_information",
    "GradientExplosion.threshold_alone": (
        "../detectors/test_loss_fall.py::test_a_jump_of_an_almost_zero_gradient_norm_is_not_an_explosion"
    ),
    "SpikeRule.threshold_alone": (
        "whole_curves/test_spike_severity.py::test_one_high_loss_of_a_long_log_is_information"
    ),
}
"""Thresholds that no text mentions, and a test that notices when one is changed by a quarter."""


def test_every_threshold_is_mentioned_by_its_class_or_noticed_by_a_test() -> None:
    without = set(unmentioned())
    hint = "mention it in the docstring as {name}, or find a test with tests/kinds/changed_thresholds.py"
    assert sorted(without - set(NOTICED)) == [], hint
    assert sorted(set(NOTICED) - without) == [], "these are mentioned by now"


@pytest.mark.slow
def test_the_tests_that_are_named_notice_a_change_by_a_quarter() -> None:
    here = Path(__file__).parent
    asked = [
        f"{name}={(here / node.partition('::')[0]).resolve()}::{node.partition('::')[2]}"
        for name, node in NOTICED.items()
    ]
    script = here / "changed_thresholds.py"
    done = subprocess.run([sys.executable, script, *asked], capture_output=True, text=True, check=True, cwd=ROOT)
    values = dict(line.split("\t") for line in done.stdout.splitlines())
    assert {name for name, node in values.items() if node} == set(NOTICED)


def test_the_default_of_a_field_is_changed_during_a_test_and_restored() -> None:
    with default_of(Says, "limit", 8.75):
        assert Says().limit == 8.75
    assert Says().limit == 7.0


def test_a_copy_is_found() -> None:
    assert copied(Copies) == [
        "7: What it sees: a loss above 7, or by 20 %.",
        "20 %: What it sees: a loss above 7, or by 20 %.",
    ]


def test_the_documentation_of_a_class_has_numbers_and_no_names_in_braces() -> None:
    for cls in (*TYPES, *RULES):
        assert "{" not in (cls.__doc__ or "")
        assert not any(set("{\n") & set(threshold.meaning) for threshold in documentation_of(cls).thresholds)


def test_a_changed_threshold_changes_its_documentation() -> None:
    assert "a loss above 7, or 20 % above" in inspect.getdoc(Says)  # type: ignore[operator]
    node = template(Says)
    assert "above 9, or 50 %" in rendered(ast.get_docstring(node) or "", {"limit": 9.0, "rise": 1.5}, __name__)
    assert documentation_of(Says).thresholds[1].meaning == "How much more than 7, in ratio."


def test_a_name_that_there_is_not_is_an_error() -> None:
    with pytest.raises(NameError, match="'limitt'"):
        type("Misspelt", (FindingType,), {"__doc__": "Above {limitt}.", "limit": 3.0})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{x}", "1,000"),
        ("{share:percent}", "5 %"),
        ("{share:points}", "5"),
        ("{share:one_in}", "20"),
        ("{ratio:rise}", "30 %"),
        ("{less:fall}", "2 %"),
        ("{nats:exp}", "2"),
        ("{nats:exp_rise}", "100 %"),
        ("{nats:exp_left}", "50 %"),
        ("{nats:exp_fall}", "50 %"),
        ("{several[1]}", "1e-7"),
        ("{three:sure}", "4.5"),
        ("{three:sure_power}", "5.2"),
        ("{ratio:sure_rise}", "48 %"),
        ("{share:sure_below}", "3.33 %"),
        ("{loss_fall.LEARNT:percent} {progress.RISEN}", "1 % 1.3"),
    ],
)
def test_numbers_are_written_as_people_read_them(text: str, expected: str) -> None:
    values = {"x": 1000, "share": 0.05, "ratio": 1.3, "less": 0.98, "nats": math.log(2), "three": 3.0}
    assert rendered(text, {**values, "several": (1, 1e-7)}, __name__) == expected


@dataclass(frozen=True, slots=True)
class Says(FindingType):
    """The loss is high.

    What it sees: a loss above {limit}, or {rise:rise} above it.
    """

    limit: float = 7.0
    """The limit."""
    rise: float = 1.2
    """How much more than {limit}, in ratio."""

    kind = "said"


@dataclass(frozen=True, slots=True)
class Copies(FindingType):
    """The loss is high.

    What it sees: a loss above 7, or by 20 %. In 7 healthy runs it was not found.
    """

    limit: float = 7.0
    """The limit."""
    rise: float = 1.2
    """How much more."""

    kind = "copied"
