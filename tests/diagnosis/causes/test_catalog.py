"""Whatever is named as a cause can be looked up, and whatever is printed can be explained."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mlflow_stability
from mlflow_stability.cli.kit.finding_types import EXPLAINED
from mlflow_stability.cli.main import run
from mlflow_stability.detectors.catalog import DETECTORS, KINDS, ON_REQUEST, name_of
from mlflow_stability.diagnosis.advice.recorded_settings import EXCLUDES
from mlflow_stability.diagnosis.advice.remedies import AGAINST_CAUSE
from mlflow_stability.diagnosis.causes.catalog import BY_NAME, CAUSES, CauseDocumentation
from mlflow_stability.diagnosis.causes.causes import FINDS, LOOKS
from mlflow_stability.diagnosis.causes.check import is_it
from mlflow_stability.diagnosis.causes.inside import SIGNS
from mlflow_stability.diagnosis.causes.nan_origin import NAMES
from mlflow_stability.diagnosis.rules.registry import RULES

PACKAGE = Path(mlflow_stability.__file__).parent


def texts_in(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def named_in_code() -> set[str]:
    """What the calls of `is_it` name outright."""
    found: set[str] = set()
    for file in (PACKAGE / "diagnosis").rglob("*.py"):
        calls = [each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.Call)]
        firsts = [each.args[0] for each in calls if isinstance(each.func, ast.Name) and each.func.id == "is_it"]
        found |= {str(each.value) for each in firsts if isinstance(each, ast.Constant)}
    return found


def test_every_cause_that_is_named_in_the_code_is_in_the_catalog() -> None:
    named = named_in_code()
    assert len(named) > 15
    assert named <= set(BY_NAME)
    tables = {each.name for each in SIGNS} | set(NAMES.values()) | set().union(*FINDS.values())
    assert tables | set(EXCLUDES) | set(AGAINST_CAUSE) <= set(BY_NAME)


def test_every_cause_of_the_catalog_is_named_somewhere() -> None:
    files = [each for each in (PACKAGE / "diagnosis").rglob("*.py") if each.name != "catalog.py"]
    texts = set().union(*(texts_in(ast.parse(each.read_text())) for each in files))
    assert set(BY_NAME) <= texts | set(KINDS)  # the end of a process is named by its kind
    assert len(BY_NAME) == len(CAUSES)


def test_a_cause_that_is_not_in_the_catalog_cannot_be_named() -> None:
    with pytest.raises(ValueError, match="'gremlins' is not in the catalog"):
        is_it("gremlins", "It was them.", since=None)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda each: str(each.name))
def test_a_cause_is_documented_in_full_and_can_be_explained(
    cause: CauseDocumentation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cause.remedies
    assert run(["explain", cause.name]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (cause.meaning, cause.evidence, cause.wrong, *cause.remedies):
        assert part.endswith(".")
        assert part in said


@pytest.mark.parametrize(
    "name", [*KINDS, *map(name_of, (*DETECTORS, *ON_REQUEST)), *LOOKS, *(each.kind for each in RULES)]
)
def test_every_name_of_a_finding_or_a_rule_can_be_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in EXPLAINED
    assert run(["explain", name]) == 0
    assert name in capsys.readouterr().out


def test_every_kind_of_event_that_is_made_anywhere_can_be_explained() -> None:
    """Events are made with a literal kind, with a constant of that name, or by a class that documents itself."""
    kinds: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Event":
                kind = node.args[1] if len(node.args) > 1 else None
                if isinstance(kind, ast.Constant):
                    kinds.add(str(kind.value))
                elif isinstance(kind, ast.Name) and isinstance(constants.get(kind.id), str):
                    kinds.add(str(constants[kind.id]))
    assert len(kinds) > 5
    assert kinds <= set(EXPLAINED), kinds - set(EXPLAINED)
