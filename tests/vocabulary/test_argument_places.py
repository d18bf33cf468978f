"""An argument that moved is answered with where it is now."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from typing import Any

import pytest

import mlflow_stability
from mlflow_stability import Options, RollbackPolicy
from mlflow_stability.cli.main import run
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import detectors_named
from mlflow_stability.manual.pages import FOLDER
from mlflow_stability.vocabulary.settings import ALWAYS_ON, RENAMED, SYNONYMS, THRESHOLDS, argument_place

ARGUMENTS = inspect.signature(mlflow_stability.autolog).parameters
MOST_ARGUMENTS = 22
BEFORE = (
    *("attention_max_seq_len", "sdr_check_interval", "sdr_collapse_threshold", "tokens_per_step", "total_steps"),
    *("total_tokens", "memory_budget", "system_metrics", "exit_wait", "journal_dir", "rule", "loss_spike_threshold"),
    *("gradient_explosion_threshold", "divergence_threshold", "consecutive_divergence_steps", "recovery_patience"),
    *("rollback_checkpoint_interval", "max_checkpoints", "best_by", "best_mode", "rollback_target", "extra_state"),
    *("adaptive_clip", "capture_batch", "snapshot_budget"),
)
"""The arguments that `autolog()` had, and has no more."""


def answer(function: Any, **given: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        function(**given)
    return str(refused.value)


def test_autolog_has_few_arguments_and_each_name_one_place() -> None:
    assert len(ARGUMENTS) <= MOST_ARGUMENTS
    of_policy, of_options = ({field.name for field in fields(kind)} for kind in (RollbackPolicy, Options))
    assert not of_policy & of_options
    assert not (of_policy | of_options) & set(ARGUMENTS)
    assert not {*SYNONYMS, *ALWAYS_ON, *RENAMED, *THRESHOLDS} & {*ARGUMENTS, *of_policy, *of_options}


@pytest.mark.parametrize("name", BEFORE)
def test_the_error_for_a_former_argument_says_what_replaces_it(name: str) -> None:
    result = answer(mlflow_stability.autolog, **{name: 5})
    assert result.startswith(f"autolog() has no argument {name!r}. ")
    assert "Did you mean" not in result
    (write,) = re.findall(r": autolog\((.*)\)\.$", result)
    (argument,) = ast_keywords(f"f({write})")
    assert argument in ("rollback", "options", "detectors")
    assert f"`{name}`" in (FOLDER / "changes.md").read_text(encoding="utf-8").partition("| argument |")[2]


def ast_keywords(call: str) -> list[str]:
    body = ast.parse(call, mode="eval").body
    assert isinstance(body, ast.Call)
    return [str(keyword.arg) for keyword in body.keywords]


def test_the_answer_has_the_value_that_was_given() -> None:
    result = answer(mlflow_stability.autolog, max_checkpoints=5)
    assert result.endswith("It is a field of RollbackPolicy: autolog(rollback=RollbackPolicy(max_checkpoints=5)).")
    assert "RollbackPolicy(extra_state=...)" in answer(mlflow_stability.autolog, extra_state={"sampler": 1})
    assert "Options(journal_dir='j')" in answer(mlflow_stability.autolog, journal_dir="j")


def test_former_thresholds_are_replaced_by_existing_detectors() -> None:
    for text in THRESHOLDS.values():
        assert detectors_named([text.format(0.5)])
    for function in (mlflow_stability.diagnose, mlflow_stability.compare, mlflow_stability.judge):
        assert '["default", "loss_spike:classic"]' in answer(function, rule="classic")


@pytest.mark.parametrize(
    ("function", "name", "sentence"),
    [
        (mlflow_stability.autolog, "enable_divergence_rollback", "Write rollback=True."),
        (mlflow_stability.autolog, "max_rollbacks", "autolog(rollback=RollbackPolicy(max_rollbacks=True))."),
        (mlflow_stability.autolog, "enable_sdr_collapse_monitor", "Sparse codes are always monitored"),
        (mlflow_stability.autolog, "log_freq", "Write log_every_n_steps=..."),
        (mlflow_stability.autolog, "checkpoint_every", "RollbackPolicy(rollback_checkpoint_interval=True)"),
        (RollbackPolicy, "select", "It is called rollback_target now: RollbackPolicy(rollback_target=True)."),
        (RollbackPolicy, "rollback", "RollbackPolicy(max_rollbacks=0)"),
        (RollbackPolicy, "guard", "It is an argument of autolog(): autolog(guard=True)."),
        (Options, "best_by", "autolog(rollback=RollbackPolicy(best_by=True))."),
    ],
)
def test_an_argument_of_another_name_is_answered_with_what_to_write(function: Any, name: str, sentence: str) -> None:
    assert sentence in answer(function, **{name: True})
    assert argument_place("check()", name, True, ["batch"]) == ""


@pytest.mark.parametrize(
    ("words", "detector"),
    [
        (["diagnose", "--rule", "classic", "x"], "loss_spike:classic"),
        (["compare", "--rule", "classic", "x"], "loss_spike:classic"),
        (["diagnose", "--loss-spike-threshold", "6", "x"], "'LossSpike(threshold=Z, threshold_alone=True)'"),
        (["run", "--sdr-collapse-threshold", "0.2", "x.py"], "'SdrCollapse(unique=Z)'"),
    ],
)
def test_an_option_of_before_is_answered_with_the_detector(
    words: list[str], detector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert f"Write --detectors default --detectors {detector}." in " ".join(capsys.readouterr().err.split())
