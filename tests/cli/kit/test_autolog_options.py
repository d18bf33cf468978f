from __future__ import annotations

from dataclasses import fields

import click
import pytest

from mlflow_stability.cli.commands.run import command
from mlflow_stability.cli.kit.autolog_options import settings_typed
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.settings import Settings


def typed(*words: str) -> dict[str, object]:
    context = command.make_context("run", [*words, "script.py"])
    names = {each.name for each in fields(Settings)}
    return settings_typed({name: value for name, value in context.params.items() if name in names})


def test_every_setting_that_can_be_typed_is_an_option_with_a_sentence() -> None:
    options = {each.name: each for each in command.params if isinstance(each, click.Option)}
    assert {each.name for each in fields(Settings)} - set(options) == {"extra_state"}  # objects of the script
    for each in options.values():
        assert len(each.help or "") > 15, each.name


def test_what_is_typed_is_what_autolog_takes() -> None:
    given = typed(
        "--rollback", "--log-every-n-steps", "20", "--layer-metrics", "parameters", "--capture-batch", "false"
    )
    assert given == {"rollback": True, "log_every_n_steps": 20, "layer_metrics": "parameters", "capture_batch": False}
    assert typed() == {}


def test_what_may_be_several_may_be_repeated() -> None:
    given = typed(
        *("--stop-on", "nonfinite", "--stop-on", "loss>50", "--detectors", "loss_spike", "--extra-tags", "team=a=b"),
        *("--alerts", "console", "--alerts", "json://localhost:1", "--extra-tags", "x="),
    )
    assert given["stop_on"] == ("nonfinite", "loss>50")
    assert given["detectors"] == ("loss_spike",)
    assert given["alerts"] == ("console", "json://localhost:1")
    assert given["extra_tags"] == {"team": "a=b", "x": ""}


@pytest.mark.parametrize("wrong", [["--exit-wait", "nan"], ["--guard", "1"], ["--max-checkpoints", "1.5"]])
def test_what_a_setting_does_not_take_is_refused_in_its_words(wrong: list[str]) -> None:
    with pytest.raises(SettingsError, match="must be"):
        typed(*wrong)
