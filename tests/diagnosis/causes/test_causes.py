from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Action, Cause, Diagnosis
from mlflow_stability.vocabulary.run import RunHistory

nan, inf = math.nan, math.inf
COUNT = 400


def norms(seed: int = 7) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, 0.1, COUNT))


def rates(value: float = 3e-4) -> np.ndarray:
    return np.full(COUNT, value)


def diverging_from(start: int) -> np.ndarray:
    losses = falling(COUNT)
    losses[start:] *= 1 + np.minimum(4, (np.arange(start, COUNT) - start) / 10)
    return losses


def cause_in(history: RunHistory) -> Cause:
    diagnosis = diagnosis_of(history)
    assert diagnosis.cause is not None, diagnosis.cannot_tell
    return diagnosis.cause


def test_a_divergence_after_a_learning_rate_jump_is_attributed_to_the_jump() -> None:
    jumped = rates()
    jumped[195:] *= 30
    cause = cause_in(run_named(loss=diverging_from(200), learning_rate=jumped, grad_norm=norms()))
    assert cause.name == "learning_rate_jump"
    assert "from 0.0003 to 0.009 at step 195" in cause.statement
    assert not cause.certain


def test_a_divergence_near_the_end_of_a_warm_up_is_attributed_to_a_high_learning_rate() -> None:
    warming = np.minimum(1.0, np.arange(COUNT) / 100) * 3e-3
    cause = cause_in(run_named(loss=diverging_from(90), learning_rate=warming, grad_norm=norms()))
    assert cause.name == "learning_rate_too_high"


def test_a_divergence_in_the_first_steps_at_full_rate_is_attributed_to_a_missing_warm_up() -> None:
    losses = np.r_[4.5, 4.4, 4.4, 4.5, 4.5, 9 * np.exp(np.random.default_rng(0).normal(0, 0.05, COUNT - 5))]
    assert cause_in(run_named(loss=losses, learning_rate=rates())).name == "no_warm_up"


def test_a_divergence_after_a_gradient_explosion_is_attributed_to_the_gradients() -> None:
    exploding = norms()
    exploding[196:] *= 40
    cause = cause_in(run_named(loss=diverging_from(200), learning_rate=rates(), grad_norm=exploding))
    assert cause.name in ("gradient_explosion", "bad_batch") or "gradient" in cause.statement
    assert any(text.startswith("learning rate: constant at 0.0003; at this rate") for text in cause.ruled_out)


def test_one_step_up_and_back_with_its_gradient_is_a_bad_batch() -> None:
    losses, jumping = falling(COUNT), norms()
    losses[250] *= 3
    jumping[250] *= 30
    cause = cause_in(run_named(loss=losses, learning_rate=rates(), grad_norm=jumping))
    assert cause.name == "bad_batch"
    assert any("gradient norm" in text for text in cause.evidence)
    assert any("learning rate: constant" in text for text in cause.ruled_out)


def test_an_infinity_before_the_nan_is_an_overflow() -> None:
    losses = falling(COUNT)
    losses[300], losses[301:] = inf, nan
    cause = cause_in(run_named(loss=losses))
    assert cause.name == "overflow"
    assert cause.evidence == ("NaN followed at step 301 in loss; a division by zero and -log(0) are infinite as well",)
    assert cause.remedies[0].action is Action.CHECK_LOSS_FUNCTION


def test_a_loss_scale_that_is_cut_again_and_again_is_named() -> None:
    losses, scale = falling(COUNT), np.full(COUNT, 65536.0)
    losses[300:] = nan
    scale[290:300] = 65536.0 / 2 ** np.arange(1, 11)
    scale[300:] = scale[299]
    cause = cause_in(run_named(loss=losses, loss_scale=scale, learning_rate=rates(), grad_norm=norms()))
    assert cause.name == "fp16_scale"


def test_a_nan_without_warning_signs_is_reported_without_a_cause() -> None:
    losses = falling(COUNT)
    losses[300:] = nan
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert diagnosis.cause is None
    assert any(str(value).startswith("No cause found for NaN at step 300. ") for value in diagnosis.cannot_tell)


def test_a_plateau_with_vanishing_gradients_is_attributed_to_them() -> None:
    flat = 3.3 * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT))
    dying = np.exp(-np.arange(COUNT) / 20.0) + 1e-7
    assert cause_in(run_named(loss=flat, grad_norm=dying)).name in ("vanishing_gradients",)


def test_a_plateau_at_chance_level_is_attributed_to_guessing() -> None:
    flat = math.log(10) * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT))
    cause = cause_in(run_named(loss=flat, learning_rate=rates(), grad_norm=norms()))
    assert cause.name == "guessing"
    assert len(cause.ruled_out) == 2


def test_overfitting_names_the_step_to_stop_at() -> None:
    train = np.linspace(4, 1, 30)
    val = np.r_[np.linspace(4, 2.5, 12), np.linspace(2.55, 3.4, 18)]
    cause = cause_in(run_named(train_loss=train, val_loss=val))
    assert cause.name == "overfitting"
    assert "step 11" in cause.statement


@pytest.mark.parametrize(
    ("outcome", "name"), [("out_of_memory", "out_of_memory"), ("killed", "external_kill"), ("crashed", "exception")]
)
def test_how_a_process_ended_is_certain(outcome: str, name: str) -> None:
    diagnosis: Diagnosis = diagnosis_of(run_of(metric_of("loss", falling(100)), outcome=outcome, outcome_detail="why"))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.evidence, diagnosis.cause.certain) == (name, ("why",), True)
    assert (diagnosis.cause.kind, diagnosis.cause.step) == (outcome, 99)
    assert diagnosis.outcome == outcome


def test_no_cause_is_named_for_a_healthy_run() -> None:
    assert diagnosis_of(run_named(loss=falling(COUNT), learning_rate=rates(), grad_norm=norms())).cause is None


def test_the_remedy_for_the_cause_comes_first_and_no_remedy_is_repeated() -> None:
    jumped = rates()
    jumped[195:] *= 30
    remedies = diagnosis_of(run_named(loss=diverging_from(200), learning_rate=jumped, grad_norm=norms())).remedies
    assert "schedule" in str(remedies[0])
    assert len(set(remedies)) == len(remedies)


def test_a_learning_rate_jump_is_reported_with_the_steps_until_the_divergence() -> None:
    jumped = rates()
    jumped[195:] *= 30
    cause = cause_in(run_named(loss=diverging_from(205), learning_rate=jumped, grad_norm=norms()))
    assert cause.name == "learning_rate_jump"
    assert "steps before" in cause.statement


def test_a_rate_that_was_raised_where_it_had_never_been_is_the_cause_of_what_follows() -> None:
    raised = np.concatenate([np.full(COUNT // 2, 1e-3), 1e-3 * 1.03 ** np.arange(COUNT - COUNT // 2)])
    losses = falling(COUNT)
    losses[COUNT - 150 :] *= np.linspace(1, 6, 150)
    cause = cause_in(run_named(loss=losses, learning_rate=raised))
    assert cause.name == "learning_rate_too_high"
    assert "it was at most" in cause.statement
