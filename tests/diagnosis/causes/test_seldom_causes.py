"""Causes that few runs have: parameters that were frozen, an output without input, no learning rate to speak of."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of
from findings import at_step, over_steps

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.causes.context import episode_context
from mlflow_stability.diagnosis.causes.course import constant_output_check
from mlflow_stability.diagnosis.causes.learning_rate import rate_too_low_check
from mlflow_stability.diagnosis.causes.weights import setting_check
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity, Topic

COUNT = 400


def flat() -> np.ndarray:
    return 2.3 * np.exp(np.random.default_rng(0).normal(0, 0.01, COUNT))


@pytest.mark.parametrize(("rate", "name"), [(1e-10, "learning_rate_too_low"), (1e-3, None)])
def test_a_plateau_at_no_learning_rate_to_speak_of_is_put_down_to_it(rate: float, name: str | None) -> None:
    history = run_named(loss=flat(), learning_rate=np.full(COUNT, rate))
    episode = over_steps("plateau", Severity.WARNING, 0, 0, COUNT - 1, "", metric="loss")
    look = rate_too_low_check(episode_context(episode, history, run_curves(history)))
    assert (look.cause and look.cause.name) == name
    assert bool(look.ruled_out) == (name is None)
    if name is not None:
        diagnosis = diagnosis_of(history)
        assert diagnosis.cause is not None
        assert diagnosis.cause.name == name
        assert not any(remedy.topic is Topic.LOWER_RATE for remedy in diagnosis.remedies)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("The number of parameters that are trained went from 12 to 3, seen at step 200.", "frozen_parameters"),
        ("betas of AdamW went from a to b, seen at step 200.", "configuration_changed"),
    ],
)
def test_what_was_changed_just_before_is_a_possible_cause(message: str, name: str) -> None:
    losses = falling(COUNT)
    losses[200:] *= 4
    events = [at_step(200, "configuration_changed", Severity.INFO, message)]
    history = run_of(metric_of("loss", losses), events=events)
    episode = over_steps("divergence", Severity.CRITICAL, 200, 200, COUNT - 1, "", recovered=False, metric="loss")
    cause = setting_check(episode_context(episode, history, run_curves(history))).cause
    assert cause is not None
    assert (cause.name, cause.certainty) == (name, "possible")
    assert message in cause.statement


def test_a_loss_that_loses_its_noise_without_falling_may_not_depend_on_the_input() -> None:
    losses = falling(COUNT)
    losses[300:] = losses[299]
    history = run_named(loss=losses)
    curves = run_curves(history)
    episode = over_steps("repeated_data", Severity.WARNING, 316, 316, COUNT - 1, "", metric="loss")
    cause = constant_output_check(episode_context(episode, history, curves)).cause
    assert cause is not None
    assert (cause.name, cause.since) == ("constant_output", 316)


CHANGED = "The weights of step 51 give a loss of 5 where they gave 1: the data or the loss function changed at about"


@pytest.mark.parametrize(("onset", "is_known"), [(195, True), (100, False), (300, False)])
def test_changed_data_is_the_cause_of_the_divergence_that_restored_weights_did_not_end(
    onset: int, is_known: bool
) -> None:
    losses = falling(COUNT)
    losses[200:] = 4 * np.exp(np.random.default_rng(1).normal(0, 0.1, COUNT - 200))
    message = f"{CHANGED} step {onset}. The training continues from the restored weights."
    seen = at_step(onset + 20, "data_changed", Severity.WARNING, message, evidence={"onset": float(onset)})
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), events=[seen]))
    assert (diagnosis.cause is not None and diagnosis.cause.name == "data_changed") == is_known
    if is_known:
        assert diagnosis.cause is not None
        assert diagnosis.cause.certain
        assert diagnosis.cause.statement == f"{CHANGED} step {onset}."
        assert str(diagnosis.remedies[0]).startswith("Check what changed at that step")
        assert not any("learning rate" in str(remedy) for remedy in diagnosis.remedies)
