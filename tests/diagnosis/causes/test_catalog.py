"""Whatever is named as a cause can be looked up, and whatever is printed can be explained."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mlflow_stability
from mlflow_stability.cli.finding_types import EXPLAINED
from mlflow_stability.cli.main import run
from mlflow_stability.diagnosis.causes.catalog import CauseType, causes, checks_of, excluded, symptoms
from mlflow_stability.diagnosis.causes.course import PREVENT_LEARNING, RAISE_LOSS, SUMS
from mlflow_stability.diagnosis.causes.inside import SIGNS
from mlflow_stability.diagnosis.causes.non_finite import CAUSE_BY_SOURCE
from mlflow_stability.diagnosis.recorded_settings import RecordedSettings
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, RULES, name_of
from mlflow_stability.vocabulary.facts import classes_of_facts

PACKAGE = Path(mlflow_stability.__file__).parent


def texts_in(node: ast.AST) -> set[str]:
    """All texts, but those by which a cause is declared."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CauseType":
        return set()
    own = {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
    return own.union(*map(texts_in, ast.iter_child_nodes(node)))


def named_in_code() -> set[str]:
    """What the calls of `cause_found` name outright."""
    result: set[str] = set()
    for file in (PACKAGE / "diagnosis").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        firsts = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "cause_found"]
        result |= {str(first.value) for first in firsts if isinstance(first, ast.Constant)}
    return result


def test_every_cause_that_is_named_in_the_code_is_in_the_catalog() -> None:
    named = named_in_code()
    assert len(named) > 15
    assert named <= set(causes())
    tables = {sign.cause for sign in SIGNS} | set(CAUSE_BY_SOURCE.values())
    tables |= {name for kind in symptoms() for check in checks_of(kind) for name in check.finds}
    assert tables <= set(causes())


def test_every_cause_of_the_catalog_is_named_somewhere() -> None:
    texts = set().union(*(texts_in(ast.parse(path.read_text())) for path in (PACKAGE / "diagnosis").rglob("*.py")))
    assert set(causes()) <= texts | set(KINDS)  # the end of a process is named by its kind


def test_a_cause_that_is_not_in_the_catalog_cannot_be_named() -> None:
    with pytest.raises(ValueError, match="'gremlins' is not in the catalog"):
        excluded("gremlins", RecordedSettings(None, None, None, None))


@pytest.mark.parametrize("cause", causes().values(), ids=lambda letter: str(letter.name))
def test_a_cause_is_documented_in_full_and_can_be_explained(
    cause: CauseType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cause.remedies
    assert run(["explain", cause.name]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (cause.meaning, cause.evidence, cause.wrong, *map(str, cause.remedies)):
        assert part.endswith(".")
        assert part in text


def test_every_name_of_a_finding_or_a_rule_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for name in {*KINDS, *map(name_of, (*DETECTORS, *ON_REQUEST)), *symptoms(), *(rule.kind for rule in RULES)}:
        assert name in EXPLAINED
        assert run(["explain", name]) == 0, name
        assert name in capsys.readouterr().out


FACTS_OF_SEVERAL_KINDS = {
    "accuracy_fall",
    "curve_spike",
    "divergence_at_start",
    "divergence_classic",
    "example",
    "final_rise",
    "flat_curve",
    "frozen",
    "generalisation_gap",
    "gradient_above_limit",
    "gradient_rise",
    "large_updates",
    "lasting_rise",
    "lost_gradient",
    "log_line",
    "loss_size",
    "loss_spike_classic",
    "low_scores",
    "no_noise",
    "non_finite",
    "process_end",
    "resume",
    "return_fall",
    "size_rise",
    "skipped_end",
    "skipped_step",
    "slow_rise",
    "standstill",
    "unbounded_fall",
    "vanishing_layer",
    "validation_rise",
}
"""Facts that go by another name than the finding, for others of its type have other facts."""


def _name(function: ast.expr) -> str:
    simple = isinstance(function, (ast.Name, ast.Attribute))  # to write others out takes longer than all else
    return ast.unparse(function) if simple else ""


@pytest.mark.slow
def test_every_kind_of_event_that_is_made_anywhere_can_be_explained() -> None:
    """Events are made of facts, with a literal kind, with a constant of that name, or by a class with documentation."""
    kinds = {kind for kind in classes_of_facts() if kind not in FACTS_OF_SEVERAL_KINDS}
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
            if isinstance(node, ast.Call) and _name(node.func) in ("Finding", "Finding.at"):
                named = (keyword.value for keyword in node.keywords if keyword.arg == "kind")
                first = node.args[0] if node.args and isinstance(node.func, ast.Name) else None
                kind = next(named, first)
                if isinstance(kind, ast.Constant):
                    kinds.add(str(kind.value))
                elif isinstance(kind, ast.Name) and isinstance(constants.get(kind.id), str):
                    kinds.add(str(constants[kind.id]))
    assert len(kinds) > 5
    assert kinds <= set(EXPLAINED), kinds - set(EXPLAINED)


def test_every_kind_of_a_mistake_in_the_set_up_that_causes_name_exists() -> None:
    assert {*PREVENT_LEARNING.split(), *RAISE_LOSS.split(), *SUMS.split()} <= set(KINDS)
