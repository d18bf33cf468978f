from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import check_arguments, given_arguments
from mlflow_stability.vocabulary.presets import PRESETS, with_preset
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Options, Settings


def settings_of(**given: Any) -> Settings:
    return Settings(**with_preset(given))


def test_every_preset_sets_the_same_options_and_they_are_options() -> None:
    names = {field.name for field in fields(Settings)}
    of_policy = {field.name for field in fields(RollbackPolicy)}
    for preset in PRESETS.values():
        assert set(preset.settings) == set(PRESETS["research"].settings) <= names
        assert set(preset.policy) == set(PRESETS["research"].policy) <= of_policy


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("rollback", [False, True])
def test_a_preset_sets_all_that_it_should_with_and_without_rollback(name: str, rollback: bool) -> None:
    settings = settings_of(preset=name, rollback=rollback)
    for setting, value in PRESETS[name].settings.items():
        assert getattr(settings, setting) == value, setting
    for field, value in PRESETS[name].policy.items():
        assert getattr(settings.policy, field) == value, field
    assert settings.policy.rolls_back == settings.guards == rollback
    if rollback:
        assert settings.policy == RollbackPolicy.preset(name)


def test_presets_differ_from_each_other_and_from_the_defaults() -> None:
    settings = [Settings(), *(settings_of(preset=preset) for preset in PRESETS)]
    every = {(item.layers_every_n_steps, item.attention_every_n_steps, item.sdr_check_interval) for item in settings}
    assert len(every) == 4


def test_a_given_option_takes_precedence_even_if_it_equals_the_default() -> None:
    usual, given = Settings(), Options(sdr_check_interval=100, capture_batch=True).given
    settings = settings_of(preset="debugging", rollback=True, layers_every_n_steps=usual.layers_every_n_steps, **given)
    assert (settings.layers_every_n_steps, settings.attention_every_n_steps, settings.sdr_check_interval) == (
        100,
        50,
        100,
    )
    assert settings.capture_batch is True
    policy = RollbackPolicy.preset("debugging", rollback_checkpoint_interval=500, divergence_threshold=None)
    assert (policy.rollback_checkpoint_interval, policy.divergence_threshold, policy.max_checkpoints) == (500, None, 20)


def test_a_policy_of_ones_own_decides_about_rollbacks_and_the_preset_about_the_rest() -> None:
    own = RollbackPolicy(rollback_checkpoint_interval=70)
    settings = settings_of(preset="debugging", rollback=own)
    assert settings.layers_every_n_steps == 10
    assert settings.policy == own


def test_without_a_preset_nothing_is_changed_and_an_unknown_one_is_refused() -> None:
    assert with_preset({"log_every_n_steps": 3}) == {"log_every_n_steps": 3}
    with pytest.raises(SettingsError, match="Did you mean 'production'"):
        with_preset({"preset": "prod"})


def test_a_public_function_knows_which_arguments_were_passed() -> None:
    @check_arguments
    def inner(*, a: int = 1, b: int = 2) -> frozenset[str]:
        return given_arguments()

    @check_arguments
    def outer(*, a: int = 1) -> tuple[frozenset[str], frozenset[str]]:
        return inner(b=2), given_arguments()

    assert outer(a=1) == ({"b"}, {"a"})
    assert outer() == ({"b"}, frozenset())
