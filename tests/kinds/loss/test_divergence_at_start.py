from __future__ import annotations

import numpy as np
import pytest
from detectors.series import judged
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.vocabulary.result import Severity

# A tiny GPT under AdamW whose learning rate is 1.0 from its first step.
LOSS = [2.29, 13.5, 82.6, 95.1, 95.0, 84.5, 102.2, 56.4, 80.4, 142.3, 69.6, 136.3]
NORM = [0.9, 10.0, 22.2, 25.8, 27.9, 26.9, 31.2, 26.9, 25.7, 32.2, 33.9, 34.6]
UPDATE = [5.58, 0.69, 0.36, 0.25, 0.21, 0.17, 0.13, 0.11, 0.09, 0.076, 0.066, 0.055]


def test_a_learning_rate_that_is_far_too_high_is_found_within_three_steps() -> None:
    (event,) = judged("divergence:start", loss=LOSS, grad_norm=NORM, update_ratio=UPDATE)
    assert (event.step, event.kind, event.severity) == (3, "divergence", Severity.CRITICAL)
    assert event.metrics["onset"] == 1
    assert "after one step changed the weights by 5.6 times their norm" in event.message


def test_it_is_found_where_updates_are_measured_every_ten_steps_only() -> None:
    seldom = [UPDATE[step] if step == 9 else None for step in range(12)]
    (event,) = judged("divergence:start", loss=LOSS, grad_norm=NORM, update_ratio=seldom)
    assert event.step == 9


def test_there_is_no_finding_without_measured_updates() -> None:
    assert judged("divergence:start", loss=LOSS, grad_norm=NORM) == []


def test_a_first_step_of_one_micro_batch_of_four_is_not_what_others_are_compared_with() -> None:
    loss, norm, updates = [0.57, 2.3, 2.4, *[1.9] * 9], [0.3, 1.2, 1.3, *[1.1] * 9], [0.06] * 12
    counts = [1.0, *[4.0] * 11]
    assert len(judged("divergence:start", loss=loss, grad_norm=norm, update_ratio=updates)) == 1
    assert judged("divergence:start", loss=loss, micro_batches=counts, grad_norm=norm, update_ratio=updates) == []
    worse = [0.57, *[4 * value for value in LOSS[1:]]]
    (event,) = judged("divergence:start", loss=worse, micro_batches=counts, grad_norm=NORM, update_ratio=UPDATE)
    assert event.metrics["level"] == pytest.approx(2.28)


@pytest.mark.parametrize("start", [0.0, -1.0])
def test_a_loss_that_begins_at_zero_or_below_has_no_multiple(start: float) -> None:
    assert judged("divergence:start", loss=[start, *LOSS], grad_norm=[0.9, *NORM], update_ratio=[5.0, *UPDATE]) == []


def test_what_leaves_its_level_later_is_left_to_the_other_rule() -> None:
    quiet = 40
    loss, norm = [2.29] * quiet + LOSS[1:], [0.9] * quiet + NORM[1:]
    assert judged("divergence:start", loss=loss, grad_norm=norm, update_ratio=[0.5] * len(loss)) == []


@settings(max_examples=80)
@given(st.integers(0, 10**6))
def test_a_lucky_first_loss_of_a_batch_of_one_is_no_divergence(seed: int) -> None:
    dice = np.random.default_rng(seed)
    errors = dice.standard_normal(64) ** 2
    errors[0] = 1e-4
    updates = 0.04 * np.exp(-np.arange(64) / 20)
    assert judged("divergence:start", loss=errors, grad_norm=np.sqrt(errors), update_ratio=updates) == []


# A GPT under AdamW at 300 times its usual rate: the first step replaces the weights, and the loss comes down again.
REPLACED_LOSS = [4.17, 5.46, 14.0, 17.2, 11.5, 7.85, 10.3, 8.09, 8.77, 8.2, 7.28, 7.45]
REPLACED_NORM = [2.3, 7.1, 7.4, 6.9, 6.6, 6.1, 5.9, 5.6, 5.5, 5.3, 5.1, 5.4]
REPLACING = [5.29, 0.4, 0.2, 0.1, 0.08, 0.05, 0.04, 0.04, 0.03, 0.03, 0.03, 0.03]


def test_a_lower_rise_is_enough_after_an_update_that_replaced_the_weights() -> None:
    (event,) = judged("divergence:start", loss=REPLACED_LOSS, grad_norm=REPLACED_NORM, update_ratio=REPLACING)
    assert (event.step, event.kind, event.severity) == (9, "divergence", Severity.WARNING)
    assert event.metrics["onset"] == 2
    assert "(threshold 1.5) for 8 steps in a row, after one step changed the weights by 5.3 times" in event.message


def test_the_lower_rise_is_not_enough_after_smaller_updates_or_for_fewer_steps() -> None:
    smaller = [min(update, 0.9) for update in REPLACING]
    assert judged("divergence:start", loss=REPLACED_LOSS, grad_norm=REPLACED_NORM, update_ratio=smaller) == []
    short = [*REPLACED_LOSS[:8], *[3.9] * 4]
    assert judged("divergence:start", loss=short, grad_norm=REPLACED_NORM, update_ratio=REPLACING) == []
