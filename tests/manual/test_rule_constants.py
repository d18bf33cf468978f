from __future__ import annotations

from importlib import import_module

import pytest

from mlflow_stability.cli.main import run
from mlflow_stability.manual.rule_constants import rule_constants

CONSTANTS = dict(rule_constants())


@pytest.mark.parametrize("file", CONSTANTS)
def test_every_number_of_a_rule_is_explained_and_read_as_it_is(file: str) -> None:
    module = import_module(f"mlflow_stability.{file.removesuffix('.py').replace('/', '.')}")
    for each in CONSTANTS[file]:
        assert each.meaning, f"{file}: {each.name} has no sentence below it"
        assert each.value == getattr(module, each.name)


def test_causes_curves_and_recovery_have_theirs_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["thresholds"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for file, constants in CONSTANTS.items():
        assert file in said
        assert all(f"{each.name} = {each.said}" in said for each in constants)
    assert "HIGH_FOR_ADAM = 0.01" in said
