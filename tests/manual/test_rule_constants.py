from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from types import ModuleType

import pytest

from mlflow_stability.cli.main import run
from mlflow_stability.manual.rule_constants import CONFIGS, rule_constants

CONSTANTS = dict(rule_constants())


def values_of(module: ModuleType, name: str) -> list[object]:
    """The constant, or the defaults of the fields of that name."""
    configs = [each for each in vars(module).values() if isinstance(each, type) and each.__name__.endswith(CONFIGS)]
    defaults = [field.default for config in configs for field in fields(config) if field.name == name]
    return defaults or [getattr(module, name)]


@pytest.mark.parametrize("file", CONSTANTS)
def test_every_number_of_a_rule_is_explained_and_read_as_it_is(file: str) -> None:
    module = import_module(f"mlflow_stability.{file.removesuffix('.py').replace('/', '.')}")
    for each in CONSTANTS[file]:
        assert each.meaning, f"{file}: {each.name} has no sentence below it"
        assert each.value in values_of(module, each.name)


@pytest.mark.slow
def test_causes_curves_and_recovery_have_theirs_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["thresholds"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for file, constants in CONSTANTS.items():
        assert file in said
        assert all(f"{each.name} = {each.text}" in said for each in constants)
    assert "high_for_adam = 0.01" in said
