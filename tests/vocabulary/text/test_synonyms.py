from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

import mlflow_stability
from mlflow_stability import Alert, RollbackPolicy
from mlflow_stability.cli.main import run
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import KINDS, named
from mlflow_stability.vocabulary.text.synonyms import (
    ALWAYS_ON,
    ARGUMENT_SYNONYMS,
    KIND_SYNONYMS,
    POLICY_FIELDS,
    argument_meant,
    kind_named,
    kinds_near,
)

ARGUMENTS = inspect.signature(mlflow_stability.autolog).parameters


def test_synonyms_stand_for_kinds_and_replace_none() -> None:
    assert set(KIND_SYNONYMS.values()) <= set(KINDS)
    assert not set(KIND_SYNONYMS) & set(KINDS)


def test_synonyms_of_arguments_replace_none() -> None:
    assert not {*ARGUMENT_SYNONYMS, *ALWAYS_ON, *POLICY_FIELDS} & set(ARGUMENTS)
    assert {field.name for field in fields(RollbackPolicy)} - set(ARGUMENTS) == POLICY_FIELDS


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        ("nan_loss", "nan_detected"),
        ("NaN-Inf", "nan_detected"),
        ("gradient spike", "gradient_explosion"),
        ("training_stall", "plateau"),
        ("slow_training", "slow_progress"),
        ("poor_generalization", "overfitting"),
        ("loss_spike", "loss_spike"),
        ("nothing of ours", "nothing_of_ours"),
    ],
)
def test_a_kind_is_found_by_its_synonym(typed: str, kind: str) -> None:
    assert kind_named(typed, KINDS) == kind


def test_kinds_are_suggested_by_meaning_before_spelling() -> None:
    assert kinds_near("nan_in_embedding", KINDS)[0] == "nan_detected"
    assert kinds_near("gradient_vanishes", KINDS)[0].startswith("gradient")
    assert kinds_near("los_spik", KINDS)[0] == "loss_spike"


def test_every_place_that_takes_a_kind_takes_its_synonym(capsys: pytest.CaptureFixture[str]) -> None:
    assert [detector.kind for detector in named(["gradient_spike"])] == ["gradient_explosion"]
    assert Alert(print, rules=("gradient_spike",)).rules
    assert run(["explain", "gradient_spike"]) == 0
    assert "gradient_explosion" in capsys.readouterr().out
    with pytest.raises(SettingsError, match=r"no event type 'los_spik'.* Did you mean 'loss_spike'"):
        Alert(print, rules=("los_spik",))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("enable_divergence_rollback", "Write rollback=True."),
        ("max_rollbacks", r"Write rollback=RollbackPolicy\(max_rollbacks=...\)."),
        ("enable_sdr_collapse_monitor", "Sparse codes are always monitored"),
        ("log_freq", "Write log_every_n_steps=..."),
    ],
)
def test_an_argument_of_another_name_is_answered_with_what_to_write(name: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        mlflow_stability.autolog(**{name: True})  # type: ignore[arg-type]
    assert argument_meant(name, ["batch"]) == ""
