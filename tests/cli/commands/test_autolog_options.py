from __future__ import annotations

from dataclasses import fields

import click
import pytest

from mlflow_stability.cli.commands.run import autolog_arguments, command
from mlflow_stability.cli.main import run
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Options, Settings


def typed(*words: str) -> dict[str, object]:
    context = command.make_context("run", [*words, "script.py"])
    names = {field.name for field in (*fields(Settings), *fields(RollbackPolicy))}
    return autolog_arguments({name: value for name, value in context.params.items() if name in names})


def test_every_setting_that_can_be_typed_is_an_option_with_a_sentence() -> None:
    options = {param.name: param for param in command.params if isinstance(param, click.Option)}
    declared = {field.name for field in (*fields(Settings), *fields(RollbackPolicy))}
    assert declared - set(options) == {"extra_state"}  # objects of the script
    for option in options.values():
        assert len(option.help or "") > 15, option.name


def test_what_is_typed_is_what_autolog_takes() -> None:
    given = typed(
        "--rollback", "--log-every-n-steps", "20", "--layer-metrics", "parameters", "--capture-batch", "false"
    )
    assert given == {
        "rollback": True,
        "log_every_n_steps": 20,
        "layer_metrics": "parameters",
        "options": Options(capture_batch=False),
    }
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


def test_what_is_about_rollbacks_makes_a_policy_on_top_of_the_preset() -> None:
    words = ("--rollback", "--max-checkpoints", "5", "--rollback-at", "warning", "--reset-momentum")
    policy = typed(*words)["rollback"]
    assert policy == RollbackPolicy(max_checkpoints=5, rollback_at=Severity.WARNING, reset_momentum=True)
    assert typed(*words[:3], "--preset", "production")["rollback"] == RollbackPolicy.preset(
        "production", max_checkpoints=5
    )
    with pytest.raises(SettingsError, match="--max-checkpoints is about rollbacks: give --rollback, too"):
        typed("--max-checkpoints", "5")


def test_the_help_lists_the_options_in_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    printed = capsys.readouterr().out
    places = [
        printed.index(text) for text in ("--module", "\nArguments of autolog():", "\nFields of Options:", "--exit-wait")
    ]
    assert places == sorted(places)
    assert (
        printed.index("--max-checkpoints") > printed.index("\nFields of RollbackPolicy, with --rollback:") > places[-1]
    )


@pytest.mark.parametrize(
    "wrong", [["--exit-wait", "nan"], ["--guard", "1"], ["--rollback", "--max-checkpoints", "1.5"]]
)
def test_what_a_setting_does_not_take_is_refused_in_its_words(wrong: list[str]) -> None:
    with pytest.raises(SettingsError, match="must be"):
        typed(*wrong)
