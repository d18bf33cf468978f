from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.cards import card_of_loss, diverging
from diagnosis.histories import falling

from mlflow_stability.diagnosis.compare import gate_of
from mlflow_stability.vocabulary.result import RunCard
from mlflow_stability.vocabulary.result.comparison import GateVerdict


def against(card: RunCard, baseline: RunCard, *others: RunCard) -> GateVerdict:
    return next(
        verdict for verdict in gate_of([baseline, card, *others], baseline).verdicts if verdict.source == card.source
    )


@pytest.mark.parametrize("seed", range(1, 8))
def test_another_seed_of_the_same_training_passes(seed: int) -> None:
    assert against(card_of_loss(falling(800, seed=seed), "b"), card_of_loss(falling(800))).passed


def test_a_run_that_diverged_fails_and_says_where() -> None:
    verdict = against(card_of_loss(diverging(), "b"), card_of_loss(falling(600)))
    assert not verdict.passed
    assert "diverged at step 3" in verdict.reasons[0]


def test_a_loss_that_is_higher_beyond_noise_fails_with_both_numbers() -> None:
    verdict = against(card_of_loss(1.1 * falling(800, seed=1), "b"), card_of_loss(falling(800)))
    assert not verdict.passed
    assert "10." in verdict.reasons[0] or "9." in verdict.reasons[0]
    assert "train_loss" in verdict.reasons[0]


def test_a_lower_loss_passes() -> None:
    assert against(card_of_loss(0.8 * falling(800, seed=1), "b"), card_of_loss(falling(800))).passed


def test_a_shorter_run_is_compared_where_it_ended() -> None:
    assert against(card_of_loss(falling(1600, seed=1)[:700], "b"), card_of_loss(falling(1600))).passed


def test_the_spread_of_the_baselines_own_seeds_is_noise() -> None:
    baselines = [
        card_of_loss(level * falling(800, seed=seed), f"base-{seed}", lr=1, seed=seed)
        for seed, level in enumerate([1.0, 1.08, 0.93, 1.04])
    ]
    worse = card_of_loss(1.1 * falling(800, seed=9), "b", lr=2, seed=0)
    assert not against(worse, baselines[0]).passed
    assert against(worse, *baselines).passed


@pytest.mark.slow
def test_many_more_spikes_fail_and_one_more_does_not() -> None:
    losses = falling(4000)
    first, many = losses.copy(), losses.copy()
    first[2000] *= 2
    many[1000::150] *= 2
    assert against(card_of_loss(first, "b"), card_of_loss(losses)).passed
    verdict = against(card_of_loss(many, "b"), card_of_loss(losses))
    assert "Loss spikes: " in verdict.reasons[0]


def test_a_lost_baseline_and_an_unreadable_run_are_reported() -> None:
    gone = RunCard("b", error="There is no such run.")
    gate = gate_of([card_of_loss(diverging()), gone], card_of_loss(diverging()))
    assert not gate.passed
    assert "Not readable" in gate.verdicts[0].reasons[0]
    assert "baseline itself diverged" in gate.cannot_tell[0]


def test_losses_of_different_metrics_are_not_compared() -> None:
    baseline = card_of_loss(falling(600))
    other = RunCard("b", outcome="healthy", loss="perplexity", last_step=600)
    assert "its metric differs from the baseline's" in gate_of([baseline, other], baseline).cannot_tell[0]


def test_two_runs_of_different_noise_and_the_same_level_pass() -> None:
    rough = falling(800, seed=3, noise=0.2) / np.exp(0.02)
    assert against(card_of_loss(rough, "b"), card_of_loss(falling(800))).passed


def test_a_lost_run_passes_against_a_lost_baseline_when_the_steps_of_divergence_are_unknown() -> None:
    first, other = (replace(card_of_loss(diverging(), name), divergence=None) for name in "ab")
    assert against(first, other).passed
