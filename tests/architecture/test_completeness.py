"""A new finding, rule or cause fails here until it is complete: words, remedies, a test that names it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from architecture.repository import ROOT

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType, Symptom
from mlflow_stability.diagnosis.causes.catalog import causes, checks_of, symptoms
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, RULES, TYPES, documentation, name_of, noun_of
from mlflow_stability.kinds.rule import Rule

TESTS = ROOT / "tests"


@cache
def words_in(*folders: str) -> frozenset[str]:
    """Every word of the tests in these folders, `loss_spike:classic` being one."""
    files = [file for folder in folders for file in Path(TESTS, folder).rglob("*.py")]
    return frozenset(word for file in files for word in re.findall(r"\w+(?::\w+)?", file.read_text("utf-8")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_finding_has_words_for_one_and_for_several(kind: str) -> None:
    nouns = {finding.noun for finding in TYPES if finding.kind == kind and finding.noun}
    assert len(nouns) == 1, f"give {kind} one `noun`, such as 'a loss spike'; it has {nouns or 'none'}"
    (noun,) = nouns
    assert noun_of(kind) == noun
    assert noun_of(kind, 3) == noun or noun_of(kind, 3).startswith("3 ")


@pytest.mark.parametrize("finding", [*TYPES, *RULES], ids=lambda letter: str(letter.__name__))
def test_every_finding_and_rule_has_documentation_and_remedies(finding: type[FindingType]) -> None:
    name = finding.__name__
    assert finding.remedies, f"give {name} `remedies`"
    assert finding.severities, f"give {name} `severities`"
    assert "__dataclass_params__" in vars(finding), (
        f"{name} needs @dataclass(frozen=True, slots=True) for its thresholds"
    )
    paragraphs = [word.strip().partition(":")[0] for word in (finding.__doc__ or "").split("\n\n")[1:3]]
    expected = ["What it sees", "When it is wrong" if issubclass(finding, Rule) else "Why it matters"]
    assert paragraphs == expected, f"the docstring of {name} needs these two paragraphs"


@pytest.mark.parametrize("detector", [*DETECTORS, *ON_REQUEST], ids=name_of)
def test_every_detector_is_tested_by_its_name(detector: type[Detector]) -> None:
    names = {detector.__name__, name_of(detector)}
    assert names & words_in("detectors", "kinds"), f"write a test in tests/kinds that names {name_of(detector)}"
    assert documentation(name_of(detector)).thresholds or not detector.by_sensitivity


@pytest.mark.parametrize(
    "finding", [item for item in TYPES if not issubclass(item, Detector)], ids=lambda letter: letter.kind
)
def test_everything_that_is_reported_is_tested_by_its_name(finding: type[FindingType]) -> None:
    names = words_in("session", "courier", "recovery", "probes", "diagnosis", "scenarios")
    assert {finding.__name__, finding.kind} & names, f"write a test that reports {finding.kind} and names it"


@pytest.mark.parametrize("finding", RULES, ids=lambda letter: str(letter.__name__))
def test_every_rule_is_tested_by_its_name_and_judges_a_finding_that_there_is(finding: type[FindingType]) -> None:
    assert finding.__name__ in words_in("kinds"), f"write a test in tests/kinds that names {finding.__name__}"
    assert finding.kind in KINDS


@pytest.mark.parametrize("name", causes())
def test_every_cause_has_documentation_remedies_and_a_test_that_names_it(name: str) -> None:
    cause = causes()[name]
    assert all((cause.meaning, cause.evidence, cause.wrong, *cause.remedies))
    assert cause.remedies
    assert name in words_in("diagnosis/causes", "diagnosis")


def test_every_symptom_is_asked_about_by_a_check() -> None:
    assert set(symptoms().values()) == set(Symptom) - {Symptom.NONE}
    assert all(checks_of(kind) for kind in symptoms())
