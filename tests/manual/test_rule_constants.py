from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from types import ModuleType

import pytest

from mlflow_stability.cli.commands.explain import CONFIGS, rule_constants
from mlflow_stability.cli.main import run


def values_of(module: ModuleType, name: str) -> list[object]:
    """The constant, or the defaults of the fields of that name."""
    configs = [var for var in vars(module).values() if isinstance(var, type) and var.__name__.endswith(CONFIGS)]
    defaults = [field.default for config in configs for field in fields(config) if field.name == name]
    return defaults or [getattr(module, name)]


def test_every_number_of_a_rule_is_explained_and_read_as_it_is() -> None:
    for file, constants in rule_constants():
        module = import_module(f"mlflow_stability.{file.removesuffix('.py').replace('/', '.')}")
        for constant in constants:
            assert constant.meaning, f"{file}: {constant.name} has no note behind it or sentence below it"
            assert constant.value in values_of(module, constant.name), f"{file}: {constant.name}"


@pytest.mark.slow
def test_causes_curves_and_recovery_have_theirs_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["thresholds"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for file, constants in rule_constants():
        assert file in text
        assert all(f"{constant.name} = {constant.text}" in text for constant in constants)
    assert "high_for_adam = 0.01" in text
