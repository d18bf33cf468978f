from __future__ import annotations

import pytest

from mlflow_stability import Alert
from mlflow_stability.cli.main import run
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import KINDS, detectors_named
from mlflow_stability.vocabulary.text.synonyms import KIND_SYNONYMS, resolve_kind, similar_kinds


def test_synonyms_stand_for_kinds_and_replace_none() -> None:
    assert set(KIND_SYNONYMS.values()) <= set(KINDS)
    assert not set(KIND_SYNONYMS) & set(KINDS)


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
    assert resolve_kind(typed, KINDS) == kind


def test_kinds_are_suggested_by_meaning_before_spelling() -> None:
    assert similar_kinds("nan_in_embedding", KINDS)[0] == "nan_detected"
    assert similar_kinds("gradient_vanishes", KINDS)[0].startswith("gradient")
    assert similar_kinds("los_spik", KINDS)[0] == "loss_spike"


def test_every_place_that_takes_a_kind_takes_its_synonym(capsys: pytest.CaptureFixture[str]) -> None:
    assert [detector.kind for detector in detectors_named(["gradient_spike"])] == ["gradient_explosion"]
    assert Alert(print, rules=("gradient_spike",)).rules
    assert run(["explain", "gradient_spike"]) == 0
    assert "gradient_explosion" in capsys.readouterr().out
    with pytest.raises(SettingsError, match=r"no event type 'los_spik'.* Did you mean 'loss_spike'"):
        Alert(print, rules=("los_spik",))
