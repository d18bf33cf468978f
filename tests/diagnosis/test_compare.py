from __future__ import annotations

from dataclasses import replace

import pytest
from diagnosis.cards import card_of_loss, diverging, made
from diagnosis.histories import falling
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mlflow_stability.diagnosis.compare import comparison_of, p_of_higher_rate, rate_of
from mlflow_stability.diagnosis.parameters import differences_of, is_seed
from mlflow_stability.vocabulary.result import Mark, RunCard, Severity


def test_the_stablest_run_comes_first_and_the_one_that_was_lost_first_comes_last() -> None:
    spiking = falling(600)
    spiking[300] *= 3
    cards = [
        card_of_loss(diverging(onset=200), "early"),
        card_of_loss(spiking, "spiking"),
        card_of_loss(diverging(onset=400), "late"),
        card_of_loss(falling(600), "well"),
    ]
    assert [card.name for card in comparison_of(cards).cards] == ["well", "spiking", "late", "early"]


def test_a_run_that_never_learned_comes_behind_those_that_did_with_some_trouble() -> None:
    spiking = falling(600)
    spiking[300] *= 3
    stuck = RunCard("stuck", "stuck", outcome="stuck", marks=(Mark("plateau", Severity.WARNING, 10, 100),), last_step=9)
    cards = [stuck, card_of_loss(diverging(onset=400), "lost"), card_of_loss(spiking, "spiking")]
    assert [card.name for card in comparison_of(cards).cards] == ["spiking", "stuck", "lost"]


def test_the_summary_counts_every_run_once() -> None:
    cards = [made("a", {}), made("b", {}, lost=5), RunCard("c"), RunCard("d", error="gone")]
    comparison = comparison_of(cards)
    assert comparison.summary == "3 runs: 1 lost, 1 stable, 1 not judged; 1 could not be read."
    assert [card.source for card in comparison.unread] == ["d"]


def test_a_run_that_is_stuck_is_counted_as_such_and_as_neither_stable_nor_unstable() -> None:
    stuck = RunCard("a", outcome="stuck", marks=(Mark("plateau", Severity.WARNING, 10, 100),))
    shaky = replace(stuck, source="b", marks=(*stuck.marks, Mark("gradient_vanishing", Severity.WARNING, 60, 60)))
    unstable = RunCard("c", outcome="unstable", marks=(Mark("loss_spike", Severity.WARNING, 10, 12, True),))
    well, lost = made("d", {}), made("e", {}, lost=5)
    assert comparison_of([stuck, well]).summary == "2 runs: 1 stuck, 1 stable."
    assert comparison_of([shaky, well]).summary == "2 runs: 1 stuck and unstable, 1 stable."
    summary = comparison_of([stuck, shaky, unstable, well, lost]).summary
    assert summary == "5 runs: 1 lost, 1 unstable, 2 stuck (1 of them unstable as well), 1 stable."
    assert [card.state for card in (stuck, shaky, unstable, well, lost)] == [
        "stuck", "stuck", "unstable", "stable", "lost"
    ]  # fmt: skip


def test_a_spike_that_became_a_divergence_is_counted_as_a_spike() -> None:
    spiked = replace(made("a", {}, lost=500), spikes_in_divergence=(500,))
    (run,) = comparison_of([spiked]).runs
    assert run.spike_rate is not None
    assert (run.spike_rate.count, run.card.spike_steps) == (1, (500,))
    assert [trouble.kind for trouble in run.card.troubles] == ["divergence"]


def test_only_parameters_that_differ_and_do_not_just_name_a_run_are_listed() -> None:
    tags = {"mlflow.source.git.commit": "abc", "mlflow.runName": "x", "stability.outcome": "finished", "team": "red"}
    card = RunCard("a", params={"lr": "1", "width": "8", "output_dir": "/a", "run_name": "a"}, tags=tags)
    other = RunCard("b", params={"lr": "2", "width": "8", "output_dir": "/b", "depth": "3"}, tags={"team": "blue"})
    differences = differences_of([card, other])
    assert [(entry.name, entry.is_tag) for entry in differences] == [
        ("lr", False),
        ("depth", False),
        ("mlflow.source.git.commit", True),
        ("team", True),
    ]
    assert differences[1].values == (None, "3")


@pytest.mark.parametrize(
    ("name", "yes"), [("seed", True), ("data.seed", True), ("random_state", True), ("speed", False)]
)
def test_seeds_are_recognized_by_their_names(name: str, yes: bool) -> None:
    assert is_seed(name) is yes


@given(st.integers(0, 50), st.integers(100, 10**6))
def test_the_interval_of_a_rate_is_the_exact_one(count: int, steps: int) -> None:
    rate = rate_of(count, steps)
    assert rate.low <= rate.per_10k <= rate.high
    high = rate.high * steps / 10_000
    assert stats.poisson.cdf(count, high) == pytest.approx(0.025, abs=1e-6)
    if count:
        assert stats.poisson.sf(count - 1, rate.low * steps / 10_000) == pytest.approx(0.025, abs=1e-6)


def test_twice_as_many_spikes_in_twice_as_many_steps_are_not_a_higher_rate() -> None:
    assert p_of_higher_rate(rate_of(8, 2000), rate_of(4, 1000)) > 0.3
    assert p_of_higher_rate(rate_of(20, 1000), rate_of(4, 1000)) < 0.01
    assert p_of_higher_rate(rate_of(0, 1000), rate_of(0, 1000)) == 1.0


def test_the_summary_distinguishes_nothing_to_compare_from_an_interruption() -> None:
    assert comparison_of([]).summary == "No run to compare."
    assert comparison_of([], asked=3, interrupted=True).summary == "Interrupted before a run was read."
