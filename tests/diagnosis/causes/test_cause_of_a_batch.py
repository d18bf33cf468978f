from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.progress.repeated_data import NoNoiseFacts
from mlflow_stability.vocabulary.result import Cause, Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT, AT = 400, 250


def norms() -> np.ndarray:
    return np.exp(np.random.default_rng(7).normal(0, 0.1, COUNT))


def named(history: RunHistory) -> Cause:
    diagnosis = diagnosis_of(history)
    assert diagnosis.cause is not None, diagnosis.cannot_tell
    return diagnosis.cause


def skipped(*steps: int) -> list[Finding]:
    return [at_step(step, "step_skipped", Severity.WARNING, f"Step {step} was skipped by us.") for step in steps]


def broken(step: int, kind: str = "nan_detected", severity: Severity = Severity.CRITICAL) -> Finding:
    return at_step(step, kind, severity, f"loss is NaN at step {step}.", evidence={"loss": math.nan})


def watched(*events: Finding, losses: np.ndarray, gradients: np.ndarray | None = None) -> RunHistory:
    rates = np.full(COUNT, 3e-4)
    metrics = [metric_of("loss", losses), metric_of("learning_rate", rates)]
    metrics.append(metric_of("grad_norm", norms() if gradients is None else gradients))
    return run_of(*metrics, events=sorted(events, key=lambda event: event.step))


def test_a_sudden_loss_jump_is_a_bad_batch_even_if_the_loss_never_recovers() -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT:] = np.r_[1e6, 3000 * np.exp(np.random.default_rng(0).normal(0, 0.3, COUNT - AT - 1))]
    gradients[AT:] *= 3000
    cause = named(run_named(loss=losses, grad_norm=gradients, learning_rate=np.full(COUNT, 3e-4)))
    assert (cause.name, cause.certainty, cause.step) == ("bad_batch", "likely", AT)
    assert "The optimizer step on it caused the rest" in cause.statement


def test_a_loss_that_jumps_and_stays_at_a_constant_level_means_changed_data_and_not_a_bad_batch() -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT:] = 3000 * np.exp(np.random.default_rng(0).normal(0, 0.2, COUNT - AT))
    gradients[AT:] *= 3000
    cause = named(run_named(loss=losses, grad_norm=gradients, learning_rate=np.full(COUNT, 3e-4)))
    assert (cause.name, cause.certainty, cause.step) == ("data_changed", "possible", AT)
    assert f"probably changed at step {AT}" in cause.statement


def test_a_loss_that_jumps_with_each_episode_of_a_game_does_not_mean_changed_data() -> None:
    drawn = np.random.default_rng(0)
    returns = np.concatenate([np.linspace(high, 0.3, 40) for high in (30, 34, 28, 36, 31, 33, 90, 95, 88, 92)])
    losses = returns * np.exp(drawn.normal(0, 0.1, COUNT))
    history = watched(at_step(241, "divergence", Severity.WARNING, "loss rose."), losses=losses)
    cause = diagnosis_of(history).cause
    assert cause is None or cause.name != "data_changed"


@pytest.mark.parametrize(
    ("last", "cause"), [(60.0, "data_changed"), (8.0, "weight_decay"), (600.0, "gradient_explosion")]
)
def test_a_loss_jump_with_a_jump_of_the_weight_norm_is_not_changed_data(last: float, cause: str) -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT:] = 3000 * np.exp(np.random.default_rng(0).normal(0, 0.2, COUNT - AT))
    gradients[AT:] *= 3000
    weights = np.where(np.arange(0, COUNT, 10) < AT, 62.0, last)
    measured = Meaning("param_norm", "", is_known=True)
    history = run_of(
        metric_of("loss", losses),
        metric_of("grad_norm", gradients),
        metric_of("learning_rate", np.full(COUNT, 3e-4)),
        metric_of("param_norm", weights, meaning=measured, steps=np.arange(0, COUNT, 10)),
    )
    assert named(history).name == cause


def test_a_jump_to_one_number_in_every_step_is_a_constant_output() -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT:], gradients[AT:] = 20.0, 0.0
    cause = named(run_named(loss=losses, grad_norm=gradients, learning_rate=np.full(COUNT, 3e-4)))
    assert (cause.name, cause.step) == ("constant_output", AT)
    assert f"From step {AT} on the loss is 20 in every step" in cause.statement


def test_a_step_with_a_usual_gradient_norm_did_not_spoil_the_rest() -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT:] = np.r_[1e6, 3000 * np.exp(np.random.default_rng(0).normal(0, 0.3, COUNT - AT - 1))]
    diagnosis = diagnosis_of(run_named(loss=losses, grad_norm=gradients, learning_rate=np.full(COUNT, 3e-4)))
    assert diagnosis.cause is None
    assert "bad batch: the jump did not recover" in str(diagnosis.cannot_tell)


def test_a_loss_jump_after_high_gradients_is_not_attributed_to_the_batch() -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT:] = 1e6
    gradients[AT - 6 :] *= 100
    cause = named(run_named(loss=losses, grad_norm=gradients, learning_rate=np.full(COUNT, 3e-4)))
    assert cause.name == "gradient_explosion"


def test_a_single_nan_loss_with_weights_that_work_afterwards_is_a_bad_batch() -> None:
    losses = falling(COUNT)
    losses[AT] = math.nan
    cause = named(watched(broken(AT), *skipped(AT), losses=losses))
    assert cause.name == "bad_batch"
    assert any("with the same weights the next batches gave" in text for text in cause.evidence)


def test_a_single_nan_loss_whose_step_left_the_weights_whole_is_a_bad_batch() -> None:
    losses = falling(COUNT)
    losses[AT] = math.nan
    diagnosis = diagnosis_of(watched(broken(AT), losses=losses))
    assert diagnosis.cause is not None
    assert diagnosis.cause.statement == f"Bad batch at step {AT}: its loss was nan; the next batches were normal."
    assert not any("skipped" in text or "same weights" in text for text in diagnosis.cause.evidence)
    losses[AT + 3] = math.nan
    assert diagnosis_of(watched(broken(AT), losses=losses)).cause is None


@pytest.mark.parametrize(("losses_times", "norms_times"), [(-1000.0, 1.0), (1.0, 1000.0)])
def test_batches_with_a_low_loss_or_large_gradients_do_not_rule_out_damaged_weights(
    losses_times: float, norms_times: float
) -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT + 1 :] *= losses_times
    gradients[AT + 1 :] *= norms_times
    losses[AT] = math.nan
    diagnosis = diagnosis_of(watched(broken(AT), *skipped(AT), losses=losses, gradients=gradients))
    assert diagnosis.cause is None or diagnosis.cause.name != "bad_batch"
    statements = [finding.cause.statement for finding in diagnosis.findings if finding.cause is not None]
    assert not any("the next batches were normal" in text for text in statements)


def test_batches_after_a_rollback_say_nothing_about_the_weights_before_it() -> None:
    losses = falling(COUNT)
    losses[AT] = math.nan
    back = at_step(AT, "rollback", Severity.INFO, "Set back.", evidence={"target": 200.0})
    diagnosis = diagnosis_of(watched(broken(AT), *skipped(AT), back, losses=losses))
    assert diagnosis.cause is None


def test_many_nan_losses_in_a_row_mean_damaged_weights_and_not_a_bad_batch() -> None:
    losses, row = falling(COUNT), range(AT, AT + 10)
    losses[AT : AT + 10] = math.nan
    back = at_step(AT + 9, "rollback", Severity.INFO, "Set back.", evidence={"target": 200.0})
    cause = named(watched(broken(AT), *skipped(*row), back, losses=losses))
    assert (cause.name, cause.certainty) == ("damaged_weights", "likely")
    assert "10 batches in a row" in cause.statement
    assert "the weights of step 200 gave normal losses" in cause.statement


def test_after_one_skipped_step_corrupted_weights_are_ruled_out_and_not_called_unchecked() -> None:
    losses = falling(COUNT)
    losses[AT] = math.nan
    cause = named(watched(broken(AT), *skipped(AT), losses=losses))
    assert f"corrupted weights: the same weights gave a finite loss at step {AT + 1}" in cause.ruled_out
    assert not any(text.startswith("corrupted weights: visible only where") for text in cause.not_checked)


def test_an_infinite_gradient_with_a_loss_scale_and_a_finite_loss_is_not_a_bad_batch() -> None:
    losses, gradients, scale = falling(COUNT), norms(), np.full(COUNT, 65536.0)
    gradients[AT], scale[AT + 1 :] = math.inf, 32768.0
    metrics = [metric_of("loss", losses), metric_of("grad_norm", gradients), metric_of("loss_scale", scale)]
    seen = run_of(*metrics, events=[broken(AT, "inf_detected"), *skipped(AT)])
    assert diagnosis_of(seen).cause is None or named(seen).name != "bad_batch"


def test_repeated_data_is_named_where_the_loss_falls_without_its_noise() -> None:
    losses = falling(COUNT)
    losses[AT:] = losses[AT - 1] * 0.985 ** np.arange(1, COUNT - AT + 1)
    history = run_named(loss=losses, grad_norm=norms(), learning_rate=np.full(COUNT, 3e-4))
    cause = named(replace(history, format="recorded"))  # of other logs a point may be a mean, which has no such noise
    assert cause.name == "repeated_data"
    assert "from about step 25" in cause.statement


def test_several_bad_batches_in_a_row_are_named_with_their_steps() -> None:
    losses = falling(COUNT)
    losses[AT : AT + 4] = 40.0
    cause = named(run_named(loss=losses, grad_norm=norms(), learning_rate=np.full(COUNT, 3e-4)))
    assert cause.statement.startswith(f"Bad batches at steps {AT} to {AT + 3}: ")


def test_a_spike_that_ended_only_by_a_rollback_is_not_a_bad_batch() -> None:
    losses, gradients = falling(COUNT), norms()
    losses[AT], gradients[AT] = losses[AT - 1] * 1.6, 30.0
    spike = at_step(AT, "loss_spike", Severity.WARNING, "loss stands out.", evidence={"loss": float(losses[AT])})
    back = at_step(AT, "rollback", Severity.INFO, "Set back.", evidence={"target": 200.0})
    assert named(watched(spike, losses=losses, gradients=gradients)).name == "bad_batch"
    assert diagnosis_of(watched(spike, back, losses=losses, gradients=gradients)).cause is None


def test_repeated_data_is_dated_to_its_beginning_even_if_it_was_found_much_later() -> None:
    noise = np.exp(np.random.default_rng(3).normal(0, 0.12, COUNT))  # so noisy that smoothness must last to be seen
    losses = falling(COUNT) * noise
    losses[AT:] = losses[AT - 1] * 0.985 ** np.arange(1, COUNT - AT + 1)
    history = run_named(loss=losses, grad_norm=norms(), learning_rate=np.full(COUNT, 3e-4))
    finding = at_step(AT + 90, "repeated_data", Severity.WARNING, "No noise.", facts=NoNoiseFacts(1.0, 0.2, 16, 0.05))
    cause = named(replace(history, format="recorded", events=(finding,)))
    assert cause.name == "repeated_data"
    assert any(f"from about step {step} on" in cause.statement for step in range(AT - 3, AT + 2))
