"""Names and sentences of other people's logs are distinguished from settings, denials and source code."""

from __future__ import annotations

import pytest

from mlflow_stability import Alert
from mlflow_stability.cli.main import run
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import KINDS, detectors_named
from mlflow_stability.vocabulary.text.foreign_names import (
    KIND_SYNONYMS,
    SENTENCES,
    kinds_in_line,
    resolve_kind,
    similar_kinds,
    unique_share_in,
)
from mlflow_stability.vocabulary.text.metric_names import metric_meanings


@pytest.mark.parametrize(
    ("name", "quantity", "place"),
    [
        ("sdr/unique_patterns", "sdr_unique_ratio", ""),
        ("train/sdr_unique_ratio", "sdr_unique_ratio", ""),
        ("sdr/blocks.0/unique_ratio", "sdr_unique_ratio", ""),
        ("rollback_count", "rollback_count", ""),
        ("num_rollbacks", "rollback_count", ""),
        ("number of skipped iterations", "skipped_steps", ""),
        ("train/mfu", "mfu", ""),
        ("gpu_memory_percent", "memory_share", ""),
        ("gpu_0_memory_usage_percentage", "memory_share", ""),
        ("tokens_per_second", "tokens_per_second", ""),
        ("img/s", "samples_per_second", ""),
        ("grad_norm_by_layer/h.0.attn", "grad_norm", "h.0.attn"),
        ("metrics/grad_norm_per_layer/h.0.attn", "grad_norm", "h.0.attn"),
        ("layer_grad_norm/h.0.attn", "grad_norm", "h.0.attn"),
        ("layer_weight_norms/h.0.attn", "param_norm", "h.0.attn"),
        ("updates/h.0.attn/ratio", "update_ratio", "h.0.attn"),
        ("throughput/mfu", "mfu", ""),
        ("sdr/bit_usage", "sdr_bit_usage", ""),
    ],
)
def test_a_metric_has_the_quantity_that_its_name_says(name: str, quantity: str, place: str) -> None:
    meaning = metric_meanings(["loss", name])[name]
    assert (meaning.quantity, meaning.place, meaning.is_known) == (quantity, place, True)


@pytest.mark.parametrize(
    "name",
    [
        "eval_samples_per_second",
        "system/gpu_0_memory_usage_percentage",
        "gpu_memory",
        "memory_percent",
        "consumed samples",
        "samples trained",
        "skipped_tokens",
        "rollback_threshold",
        "sdr_loss_weight",
        "mfu_target",
    ],
)
def test_what_says_something_else_is_not_taken_for_a_signal(name: str) -> None:
    assert metric_meanings(["loss", name])[name].is_known is False


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("SDR COLLAPSE DETECTED: 18.3 % unique", ("sdr_collapse",)),
        ("WARNING Batch 1200: ROLLBACK TRIGGERED", ("rollback",)),
        ("Rolled back to step 900", ("rollback",)),
        ("NaN loss detected at batch 1010! Skipping", ("nan_detected",)),
        ("NaN detected in gradients", ("nan_detected",)),
        ("Infinite gradient at batch 40", ("inf_detected",)),
        ("Infinite gradient norm: inf", ("inf_detected",)),
        ("[!] Gradient explosion detected, norm 812", ("gradient_explosion",)),
        ("Divergence warning (1/3): Loss=8.2340 > 2.0x avg", ("loss_spike", "divergence")),
        ("Loss=8.2340 > 2.0x avg", ("loss_spike",)),
        ("Loss exploded", ("divergence",)),
        ("training has diverged at epoch 3", ("divergence",)),
        ("High gradient norm: 152.3", ("gradient_explosion",)),
        ("grad norm too high: 152.3", ("gradient_explosion",)),
        ("low diversity: 28 % unique", ("sdr_low_diversity",)),
        ("poor bit usage", ("sdr_bit_usage",)),
        ("temperature out of range", ("sdr_temperature",)),
        ("GPU temperature out of range", ()),
        ("learning rate too high for Adam?", ()),
        ("loss 2.31 > best 2.30", ()),
        ("divergence_threshold: 2.0", ()),
        ("stop if loss diverged", ()),
        ("rollback_triggered: False", ()),
        ('"sdr_collapse_detected": false, ', ()),
        ("no NaN loss detected", ()),
        ("    if torch.isnan(loss): print('NaN loss detected')", ()),
        ("    raise ValueError('NaN loss detected')", ()),
        ("loss nan grad_norm 0.5 lr 0.1", ()),
        ("detect_nan loss: true", ()),
        ("step 10 loss 2.31", ()),
    ],
)
def test_a_sentence_speaks_of_findings(line: str, kinds: tuple[str, ...]) -> None:
    assert kinds_in_line(line) == kinds


@pytest.mark.parametrize(
    ("line", "share"),
    [("18.3 % unique", 0.183), ("18.3% unique", 0.183), ("0.183 unique", 0.183), ("unique_ratio=0.183", 0.183)],
)
def test_the_share_of_unique_codes_is_read_from_the_words(line: str, share: float) -> None:
    assert unique_share_in(line) == pytest.approx(share)


def test_every_name_in_the_tables_is_a_type_of_finding() -> None:
    assert {kind for kind, _ in SENTENCES} <= set(KINDS)


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
