from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mlflow_stability.errors import SettingsError
from mlflow_stability.manual.python_api import field_meanings
from mlflow_stability.vocabulary.presets import PRESETS
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"snapshot_every": 0},
        {"rewind": -1},
        {"easing_factor": 0.0},
        {"easing_factor": 1.5},
        {"cut_factor": float("nan")},
        {"easing_clip": 1.0},
        {"divergence_threshold": 0.5},
        {"rollback_target": "oldest"},
        {"on_give_up": "cry"},
        {"rollback_after_skips": 0},
    ],
)
def test_invalid_values_are_refused_with_the_rule_and_the_value(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SettingsError, match=rf"^{name} must be .*{value!s}") as raised:
        RollbackPolicy(**wrong)
    assert str(raised.value).endswith((".", "?"))


def test_presets_are_policies_that_can_be_changed() -> None:
    assert RollbackPolicy.preset("research").divergence_threshold == 1.5
    assert RollbackPolicy.preset("production", rewind=70).rewind == 70
    assert RollbackPolicy.preset("debugging").on_give_up == "raise"
    with pytest.raises(SettingsError, match="must be 'research', 'production' or 'debugging'; got 'fast'"):
        RollbackPolicy.preset("fast")
    with pytest.raises(SettingsError, match=r"no argument 'rewnid'\. Did you mean 'rewind'"):
        RollbackPolicy.preset("research", rewnid=1)


@pytest.mark.parametrize("knob", [field.name for field in dataclasses.fields(RollbackPolicy)])
def test_every_knob_refuses_what_is_of_no_type_of_its_own(knob: str) -> None:
    for wrong in ("a", object(), 1j, float("nan"), -1, {"a": 1}):
        if (knob, wrong) in (("rollback_on", "a"), ("best_by", "a")):
            continue  # a name, of a finding that a detector of your own may have, or of a metric
        with pytest.raises(SettingsError, match=rf"^{knob} must be .*; got .*\.$"):
            RollbackPolicy(**{knob: wrong})


def test_a_policy_that_never_rolls_back_only_skips_and_keeps_checkpoints() -> None:
    assert RollbackPolicy().rolls_back
    assert not RollbackPolicy(max_rollbacks=0).rolls_back
    assert not RollbackPolicy(max_rollbacks_in_all=0).rolls_back
    assert RollbackPolicy(max_rollbacks=0, on_give_up="raise").rolls_back  # it raises at the first divergence
    settings = Settings(rollback=RollbackPolicy(max_rollbacks=0, best_by="val_loss"))
    assert settings.guards is True
    assert settings.policy.best_by == "val_loss"


def test_there_is_a_policy_for_every_preset_that_a_setting_can_name() -> None:
    assert all(isinstance(RollbackPolicy.preset(preset), RollbackPolicy) for preset in PRESETS)


def test_the_error_for_a_misspelt_option_suggests_the_right_one() -> None:
    with pytest.raises(SettingsError, match=r"^RollbackPolicy\(\) has no argument 'max_rollback'\. Did you mean"):
        RollbackPolicy(max_rollback=3)  # type: ignore[call-arg]


def test_every_knob_says_what_it_does() -> None:
    meanings = field_meanings("RollbackPolicy")
    assert [field.name for field in dataclasses.fields(RollbackPolicy) if not meanings[field.name]] == []
