from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from mlflow_stability.errors import SettingsError
from mlflow_stability.recovery.rollback_policy import RollbackPolicy


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
        {"guard": "later"},
        {"select": "oldest"},
        {"on_give_up": "cry"},
        {"rollback_after_skips": 0},
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_rule_and_what_came(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(SettingsError, match=rf"^{name} must be .*{value!s}") as told:
        RollbackPolicy(**wrong)
    assert str(told.value).endswith(".")


def test_presets_are_policies_that_can_be_changed() -> None:
    assert RollbackPolicy.preset("research").divergence_threshold == 1.5
    assert RollbackPolicy.preset("production", rewind=70).rewind == 70
    assert RollbackPolicy.preset("debugging").on_give_up == "raise"
    with pytest.raises(SettingsError, match="debugging, production, research, got 'fast'"):
        RollbackPolicy.preset("fast")
    with pytest.raises(SettingsError, match="has no rewnid"):
        RollbackPolicy.preset("research", rewnid=1)


def test_every_knob_says_what_it_does() -> None:
    source = inspect.getsource(RollbackPolicy)
    for each in dataclasses.fields(RollbackPolicy):
        after = source.split(f"    {each.name}: ", 1)[1].split("\n", 2)[1]
        assert after.strip().startswith('"""'), each.name
