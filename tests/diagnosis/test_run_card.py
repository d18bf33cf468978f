from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.cards import card_of_loss, diverging, made
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.compare import spike_rate_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.run_card import run_card_of
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import Finding, Mark, Severity
from mlflow_stability.vocabulary.text.metric_names import Meaning


def test_a_healthy_run_is_neither_unstable_nor_lost() -> None:
    card = card_of_loss(falling(600))
    assert card.unstable is False
    assert not card.lost
    assert card.onset is card.divergence is None
    assert card.final_loss == pytest.approx(1.5, rel=0.05)
    assert card.best_loss == pytest.approx(1.5, rel=0.05)
    assert card.steps == 600


@pytest.mark.parametrize(
    ("first", "last", "every", "made"),
    [
        (0, 999, 1, 1000),
        (1, 1000, 1, 1000),
        (100, 1000, 100, 1000),  # its first value is of the end of the first hundred
        (0, 900, 100, 901),
        (5_001, 6_000, 1, 1000),  # a resume
        (5_100, 6_000, 100, 1000),
    ],
)
def test_the_steps_of_a_run_are_those_it_made_however_few_of_them_were_logged(
    first: int, last: int, every: int, made: int
) -> None:
    steps = np.arange(first, last + 1, every)
    history = run_of(metric_of("train_loss", np.linspace(3, 2, len(steps)), steps=steps))
    assert run_card_of(history, diagnosis_of(history)).steps == made


def test_a_run_that_diverged_says_since_when() -> None:
    card = card_of_loss(diverging())
    assert card.lost
    assert card.unstable
    assert card.divergence is not None
    assert 300 <= card.divergence <= 340
    assert card.onset == card.divergence
    assert card.recovery_steps == ()


def test_a_spike_that_passed_is_an_episode_with_a_recovery_and_no_loss_of_the_run() -> None:
    losses = falling(600)
    losses[300:303] *= 4
    card = card_of_loss(losses)
    assert card.unstable
    assert not card.lost
    assert len(card.spikes) == 1
    assert len(card.recovery_steps) == 1
    assert card.recovery_steps[0] <= 20


def test_one_lucky_batch_does_not_set_the_best_loss() -> None:
    losses = falling(600)
    losses[400] = 0.01
    best = card_of_loss(losses).best_loss
    assert best is not None
    assert best > 1.3


def test_the_final_loss_of_a_run_that_ended_in_nan_is_nan() -> None:
    final = card_of_loss(np.where(np.arange(600) < 500, falling(600), np.nan)).final_loss
    assert final is not None
    assert math.isnan(final)


def test_a_run_without_a_loss_is_neither_stable_nor_unstable() -> None:
    history = run_of(metric_of("throughput", np.ones(50)))
    card = run_card_of(history, diagnosis_of(history))
    assert card.unstable is None
    assert card.final_loss is card.best_loss is card.sketch is card.course is None


def test_lost_steps_are_counted_from_rollbacks_and_from_the_counter_of_skipped_steps() -> None:
    back = Finding.at(RollbackFacts("loss 9.", 260, 290, 40, 0.1, 1), 300, Severity.INFO)
    counter = metric_of("skipped_steps", [0, 1, 2, 0, 3], meaning=Meaning("skipped_steps", is_known=True))
    history = run_of(metric_of("train_loss", falling(600)), counter, events=[back, back])
    card = run_card_of(history, diagnosis_of(history))
    assert (card.rolled_back, card.skipped, card.wasted) == (80, 5, 85)


def test_our_own_parameters_go_by_their_short_name_unless_the_script_has_one_of_that_name() -> None:
    params = {"lr": "0.1", "stability.lr": "0.2", "stability.clip": "1"}
    history = run_of(metric_of("train_loss", falling(600)), params=params)
    assert run_card_of(history, diagnosis_of(history)).params == {"lr": "0.1", "clip": "1"}


def test_the_levels_of_a_loss_that_reaches_below_zero_are_in_its_own_units() -> None:
    losses = 10 + falling(600) * np.where(np.arange(600) % 2, 1, -1)
    losses[:50] -= 30
    course = card_of_loss(losses).course
    assert course is not None
    assert not course.logarithmic
    assert np.median(course.levels) == pytest.approx(10, abs=2)


def test_a_killed_run_that_was_healthy_is_not_unstable() -> None:
    history = run_of(metric_of("train_loss", falling(600)), outcome="killed")
    card = run_card_of(history, diagnosis_of(history))
    assert card.unstable is False
    assert card.onset is None
    assert card.severity is Severity.CRITICAL


def test_the_cause_of_a_later_finding_names_the_finding_that_it_explains() -> None:
    losses = np.concatenate([falling(600), np.full(10, np.nan)])
    events = [
        at_step(100, "oscillation", Severity.WARNING, "The loss oscillates."),
        at_step(600, "nan_detected", Severity.CRITICAL, "loss is NaN at step 600."),
        at_step(600, "nan_origin", Severity.INFO, "Step 600: the batch was not finite.", evidence={"from.input": 1.0}),
    ]
    history = run_of(metric_of("loss", losses), events=events)
    card = run_card_of(history, diagnosis_of(history))
    assert (card.cause_statement, card.cause_explains) == ("The batch was not finite.", "NaN at step 600")


def test_the_cause_of_the_first_finding_names_no_other_finding() -> None:
    events = [
        at_step(600, "nan_detected", Severity.CRITICAL, "loss is NaN at step 600."),
        at_step(600, "nan_origin", Severity.INFO, "Step 600: the batch was not finite.", evidence={"from.input": 1.0}),
    ]
    history = run_of(metric_of("loss", np.concatenate([falling(600), np.full(10, np.nan)])), events=events)
    card = run_card_of(history, diagnosis_of(history))
    assert (card.cause_statement, card.cause_explains) == ("The batch was not finite.", "")


def test_the_cause_is_known_where_it_is_the_first_finding_itself() -> None:
    rates = np.full(400, 1e-3)
    rates[199:203] = 0.5
    losses = falling(400, first=2.3, last=1.5, noise=0.02)
    losses[200:] = 2.7
    losses[200] = 2674.0
    norms = np.full(400, 0.4)
    norms[200] = 1009.0
    events = [
        at_step(199, "learning_rate_jump", Severity.WARNING, "learning rate jumped from 0.001 to 0.5 at step 199."),
        at_step(200, "loss_spike", Severity.CRITICAL, "loss is 2674 at step 200."),
        at_step(200, "gradient_explosion", Severity.CRITICAL, "grad_norm is 1009 at step 200."),
    ]
    history = run_of(
        metric_of("loss", losses),
        metric_of("grad_norm", norms, meaning=Meaning("grad_norm", is_known=True)),
        metric_of("learning_rate", rates, meaning=Meaning("learning_rate", is_known=True)),
        events=events,
    )
    card = run_card_of(history, diagnosis_of(history))
    assert card.cause == "learning_rate_jump"
    assert card.cause_statement.startswith("The learning rate jumped")
    assert card.spike_steps == (200,)  # that of which there was a warning, and which is part of the divergence


def test_the_best_loss_is_the_one_that_the_verdict_speaks_of() -> None:
    losses = np.r_[3.638, 4.2, 10.0, np.geomspace(29.4, 18.5, 147)]
    card = card_of_loss(losses)
    assert "times its best level of 3.638" in card.verdict
    assert card.best_loss == pytest.approx(3.638)


def test_nan_losses_do_not_count_for_the_spike_rate() -> None:
    rate = spike_rate_of(card_of_loss(np.where(np.arange(300) < 20, falling(300), np.nan)))
    assert rate is not None
    assert (rate.count, rate.steps) == (0, 20)


def test_a_stalled_process_does_not_make_a_training_unstable() -> None:
    stalled = Mark("stall", Severity.CRITICAL, 9, 9, recovered=False)
    assert replace(made("a", {}), marks=(stalled,)).unstable is False
