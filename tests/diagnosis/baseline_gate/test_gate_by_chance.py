"""The baseline gate for two runs that differ by their seed alone, and for a worse run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.cards import card_of_loss, made
from diagnosis.histories import falling

from mlflow_stability.diagnosis.compare import gate_of
from mlflow_stability.vocabulary.result import RunCard
from mlflow_stability.vocabulary.result.comparison import BaselineGate


def failed(gate: BaselineGate) -> list[str]:
    return [verdict.source for verdict in gate.verdicts if not verdict.passed]


@pytest.mark.slow
def test_a_longer_or_shorter_run_with_the_same_loss_curve_passes() -> None:
    for number in range(12):
        long = falling(2000, seed=number)
        for run, baseline in ((long, falling(2000, seed=99)[:150]), (long[:150], falling(2000, seed=99))):
            usual = card_of_loss(baseline, "base")
            assert gate_of([usual, card_of_loss(run, "b")], usual).passed, (number, len(run))


@pytest.mark.slow
def test_two_loss_curves_that_wander_slowly_are_not_found_to_differ() -> None:
    """A loss is as uncertain as its slow ups and downs, which no noise of single points shows."""
    count = 0
    for number in range(40):
        cards = []
        for half in range(2):
            dice = np.random.default_rng(2 * number + half)
            wander = np.convolve(dice.standard_normal(1100), np.ones(60) / 60**0.5, "valid")[:1000]
            cards.append(card_of_loss(falling(1000, seed=number) * np.exp(0.04 * wander), f"{half}"))
        count += len(failed(gate_of(cards, cards[0])))
    assert count <= 2


def test_the_run_with_the_most_spikes_among_many_equal_runs_does_not_fail() -> None:
    counts = sorted(np.random.default_rng(0).poisson(15, 60).tolist())
    cards = [
        replace(made(str(n), {}), spikes_in_divergence=tuple(range(10, 10 + count))) for n, count in enumerate(counts)
    ]
    assert failed(gate_of(cards, cards[2])) == []


def test_five_times_as_many_spikes_fail() -> None:
    few, many = falling(4000), falling(4000, seed=1)
    few[1000:3800:900] *= 3
    many[600:3800:160] *= 3
    baseline = card_of_loss(few, "base")
    assert (len(baseline.spike_steps), failed(gate_of([baseline, card_of_loss(many, "b")], baseline))) == (4, ["b"])


def repetition(number: int, level: float) -> RunCard:
    return card_of_loss(level * falling(600, seed=number), f"s{number}", lr=1, seed=number)


def test_a_repetition_that_is_far_worse_does_not_hide_in_the_spread_that_it_makes() -> None:
    seeds = [repetition(number, level) for number, level in enumerate((1.0, 1.01, 0.99, 1.005, 2.0))]
    assert failed(gate_of(seeds, seeds[0])) == ["s4"]


def test_three_seeds_do_not_know_their_own_spread_well() -> None:
    seeds = [repetition(number, level) for number, level in enumerate((1.0, 1.02, 0.98))]
    other = card_of_loss(1.15 * falling(600, seed=7), "b", lr=2, seed=0)
    assert failed(gate_of([*seeds, other], seeds[0])) == []


def test_runs_that_could_not_be_compared_are_named() -> None:
    baseline = card_of_loss(falling(800), "base")
    short, tiny = card_of_loss(falling(800, seed=1)[:100], "short"), card_of_loss(falling(800)[:3], "tiny")
    gate = gate_of([baseline, short, tiny], baseline)
    assert "Not compared: the final loss of tiny" in gate.cannot_tell[0]
    assert "short, tiny, which made fewer than the baseline's 800 steps" in gate.cannot_tell[1]
    passed = next(verdict for verdict in gate.verdicts if verdict.source == "short")
    assert passed.reasons == ("Not worse in how it ended, findings, loss spikes and final loss.",)
