from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.settings import Settings, settings_from_environment

WRONG: dict[str, list[Any]] = {
    "whole number": ["10", "1GB", None, True, 2.5, -1, float("nan"), float("inf"), [3], {}, 1j, object()],
    "number": ["x", "0.5", None, False, -1.0, float("nan"), [1.0], b"1", object()],
    "True": ["no", "yes", None, 1, 0, 0.0, [], object()],
    "the name of a module": [None, 3, True, [1], {"encoder": 1}, b"encoder", object()],
    "'nonfinite'": [None, 3, True, [50], {"loss": 50}, object()],
    "a mapping": [["a"], "a=b", 3, True, object()],
    "port": [
        "9464",
        ":9464",
        "0.0.0.0",
        "http://host:1",
        None,
        True,
        0,
        65536,
        2.5,
        float("nan"),
        float("inf"),
        [80],
        b"h:1",
    ],
    "the path": ["", 3, True, ["journal"], b"journal"],
    "names": [3, True, b"loss_spike", {"loss_spike": 1}],
    "'research'": ["prod", "Production", 3, True, ["research"]],
    "'supervised'": ["dqn", "Policy", 0, True, ["policy"]],
    "'low'": ["lower", "High", None, 0, True, ["low"]],
}
"""Values that are refused, by how the words of the settings that refuse them begin."""
CHECKED = [field for field in fields(Settings) if field.name not in ("alerts", "mirrors")]
"""These are checked where their types are known."""


def wrong_for(words: str, default: object) -> list[Any]:
    key = next(key for key in WRONG if words.removeprefix("a ").startswith(key) or words.startswith(key))
    return [value for value in WRONG[key] if not (value is None and "None" in words) and value is not default]


CASES = [
    pytest.param(entry.name, wrong, id=f"{entry.name}-{str(wrong)[:20]}")
    for entry in CHECKED
    for wrong in wrong_for(entry.metadata["takes"].words, entry.default)
]


@pytest.mark.parametrize(("name", "wrong"), CASES)
def test_invalid_settings_are_refused_with_the_allowed_values_and_the_given_one(name: str, wrong: object) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings(**{name: wrong})  # type: ignore[arg-type]
    result = str(refused.value)
    takes = next(field.metadata["takes"] for field in fields(Settings) if field.name == name)
    assert result.startswith(f"{name} must be {takes.words}; got ")
    if type(wrong) is not object:
        assert repr(wrong) in result


def test_every_setting_says_what_it_takes_and_takes_its_default() -> None:
    for entry in CHECKED:
        assert entry.metadata["takes"].words, entry.name
    assert Settings() == Settings(**{field.name: getattr(Settings(), field.name) for field in fields(Settings)})


def test_one_name_is_a_tuple_of_one_and_a_folder_is_a_path() -> None:
    settings = Settings(representations="encoder", stop_on="nonfinite", journal_dir="j", detectors="loss_spike")  # type: ignore[arg-type]
    assert settings.representations == ("encoder",)
    assert settings.stop_on == ("nonfinite",)
    assert settings.journal_dir == Path("j")
    assert settings.detectors == ("loss_spike",)
    assert Settings(extra_tags={"seed": 3, 4: None}).extra_tags == {"seed": "3", "4": "None"}  # type: ignore[dict-item]
    assert Settings(extra_tags=None).extra_tags == {}  # type: ignore[arg-type]


def test_numbers_of_numpy_and_whole_floats_are_numbers() -> None:
    settings = Settings(
        log_every_n_steps=np.int64(5), memory_budget=1e9, exit_wait=np.float32(0.5), silent=np.bool_(True)
    )  # type: ignore[arg-type]
    assert (settings.log_every_n_steps, settings.memory_budget, settings.exit_wait, settings.silent) == (
        5,
        10**9,
        0.5,
        True,
    )
    assert type(settings.log_every_n_steps) is int
    assert type(settings.silent) is bool


def test_the_nearest_choice_is_suggested() -> None:
    with pytest.raises(SettingsError, match="Did you mean 'production'"):
        Settings(preset="prod")
    with pytest.raises(SettingsError, match="Did you mean 'parameters'"):
        Settings(layer_metrics="params")


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_an_invalid_wait_in_the_environment_is_refused_by_the_name_of_its_variable(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_STABILITY_EXIT_WAIT", text)
    with pytest.raises(SettingsError, match="MLFLOW_STABILITY_EXIT_WAIT must be a number of seconds, 0 or more; got "):
        settings_from_environment()


@pytest.mark.parametrize(("value", "expected"), [("1", {"offline": True}), ("0", {"offline": False}), ("", {})])
def test_the_environment_overrides_offline(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: dict[str, bool]
) -> None:
    monkeypatch.setenv("MLFLOW_STABILITY_OFFLINE", value)
    assert settings_from_environment() == expected
