"""A learning rate is the cause, is ruled out by what the training tolerated, or could not be checked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of
from findings import at_step, over_steps

from mlflow_stability.curves.curves import curves_of, run_curves
from mlflow_stability.diagnosis.causes.catalog import CheckResult
from mlflow_stability.diagnosis.causes.context import episode_context, jumps_in
from mlflow_stability.diagnosis.causes.learning_rate import learning_rate_check, rate_too_low_check
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.recorded_settings import settings_of
from mlflow_stability.kinds.catalog import detectors_named
from mlflow_stability.kinds.loss.divergence import DivergenceFacts
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Action, Severity, Topic
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 400
Rates = np.ndarray[tuple[int], np.dtype[np.float64]]


def diverging_from(start: int) -> Rates:
    losses = falling(COUNT)
    losses[start:] *= 1 + np.minimum(4, (np.arange(start, COUNT) - start) / 10)
    return losses


def warm_restarts(period: int = 100, top: float = 1e-3) -> Rates:
    """Cosine with warm restarts: back to the top every `period` steps."""
    return 1e-5 + (top - 1e-5) * 0.5 * (1 + np.cos(np.pi * (np.arange(COUNT) % period) / period))


def looked(history: RunHistory, start: int, kind: str = "divergence") -> CheckResult:
    episode = over_steps(kind, Severity.CRITICAL, start, start, COUNT - 1, "", recovered=False, metric="loss")
    return learning_rate_check(episode_context(episode, history, run_curves(history)))


@pytest.mark.parametrize(("optimizer", "named"), [("LBFGS", True), ("SGD", False)])
def test_lbfgs_that_diverges_needs_a_line_search_and_no_warm_up(optimizer: str, named: bool) -> None:
    losses = np.r_[10.0, 8.0, 7.0, np.geomspace(7, 1e6, 37)]
    curves = metric_of("loss", losses), metric_of("learning_rate", np.ones(40))
    diagnosis = diagnosis_of(run_of(*curves, params={"stability.optimizer": optimizer}))
    assert diagnosis.cause is not None
    assert (diagnosis.remedies[0].action is Action.SEARCH_ALONG_LINE) is named
    assert ("LBFGS made the loss rise" in diagnosis.cause.statement) is named


def test_a_step_of_lbfgs_that_broke_after_its_first_loss_was_no_bad_start() -> None:
    skipped = at_step(0, "step_skipped", Severity.WARNING, "Skipped step 0.")
    curves = metric_of("loss", np.geomspace(9, 1, 40)), metric_of("learning_rate", np.full(40, 3.0))
    norms = metric_of("grad_norm", np.ones(40))
    by_lbfgs, by_sgd = (
        diagnosis_of(run_of(*curves, norms, events=[skipped], params={"stability.optimizer": optimizer})).cause
        for optimizer in ("LBFGS", "SGD")
    )
    assert by_lbfgs is not None
    assert by_lbfgs.name == "learning_rate_too_high"
    assert "LBFGS made the loss rise at a learning rate of 3, within its first step" in by_lbfgs.statement
    assert by_sgd is not None
    assert by_sgd.name == "broken_from_start"


def test_a_rate_that_rises_until_the_training_breaks_is_the_cause() -> None:
    rising = np.linspace(0.02, 0.034, COUNT)
    diagnosis = diagnosis_of(run_named(loss=diverging_from(390), learning_rate=rising))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_too_high"
    assert not any("learning rate" in text for text in diagnosis.cause.ruled_out)


@pytest.mark.parametrize(("back", "named"), [(True, True), (False, False)])
def test_a_divergence_dated_too_early_by_noise_is_attributed_to_the_jump_right_after(back: bool, named: bool) -> None:
    losses, rates = diverging_from(303), np.where(np.arange(COUNT) < 301, 1e-3, 0.1)
    losses[300] *= 1.2
    losses[301:] *= 1.0 if back else 1.2
    cause = looked(run_named(loss=losses, learning_rate=rates), 300).cause
    assert (cause is not None and cause.name == "learning_rate_jump") == named
    if cause is not None:
        assert cause.statement == "The learning rate jumped from 0.001 to 0.1 at step 301."


@pytest.mark.parametrize("after", [1.5, 10.0])
def test_a_rate_that_kept_rising_after_the_divergence_is_not_ruled_out(after: float) -> None:
    rising = np.concatenate([np.linspace(0.02, 0.034, 300), np.linspace(0.034, 0.034 * after, 100)])
    assert looked(run_named(loss=diverging_from(300), learning_rate=rising), 300).cause is not None


def test_noise_around_one_level_does_not_rule_a_rate_out() -> None:
    ruled_out = 0
    for seed in range(50):
        losses = 5 * np.exp(np.random.default_rng(seed).normal(0, 0.5, COUNT))
        losses[300:] *= 1e6
        ruled_out += bool(looked(run_named(loss=losses, learning_rate=np.full(COUNT, 80.0)), 300).ruled_out)
    assert ruled_out <= 10


def test_a_rate_is_ruled_out_by_a_higher_one_that_was_tolerated_later() -> None:
    losses = falling(COUNT)
    losses[100] *= 4
    look = looked(run_named(loss=losses, learning_rate=np.linspace(1e-4, 1e-3, COUNT)), 100, "loss_spike")
    assert look.ruled_out.startswith("learning rate: 0.000326, and 0.001 later without trouble")


def test_a_constant_rate_from_which_nothing_is_learned_is_not_ruled_out_and_is_lowered_first() -> None:
    flat = math.log(10) * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT))
    diagnosis = diagnosis_of(run_named(loss=flat, learning_rate=np.full(COUNT, 0.3)))
    assert diagnosis.outcome == "stuck"
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_too_high"
    assert str(diagnosis.remedies[0]).startswith("Lower the learning rate from 0.3 to about 0.03")
    assert not any("0.3" in text and "too high" in text for text in diagnosis.cause.ruled_out)
    assert not any(remedy.topic is Topic.RAISE_RATE for remedy in diagnosis.remedies)


def test_a_usual_rate_from_which_nothing_is_learned_is_not_checked() -> None:
    flat = math.log(10) * np.exp(np.random.default_rng(0).normal(0, 0.005, COUNT))
    diagnosis = diagnosis_of(run_named(loss=flat, learning_rate=np.full(COUNT, 3e-4)))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "guessing"
    assert any("a rate below 0.0003 was not tried" in text for text in diagnosis.cause.not_checked)


def test_a_constant_rate_at_which_the_loss_had_fallen_is_ruled_out_with_that_evidence() -> None:
    look = looked(run_named(loss=diverging_from(300), learning_rate=np.full(COUNT, 3e-4)), 300)
    assert look.ruled_out == "learning rate: constant at 0.0003; at this rate the loss fell from 4.44 to 1.54"


def test_a_divergence_that_was_found_some_steps_late_does_not_hide_that_the_loss_had_fallen() -> None:
    losses = falling(COUNT)
    losses[300:] = 6.0 * np.exp(-np.arange(COUNT - 300) / 100)
    history = run_named(loss=losses, learning_rate=np.full(COUNT, 3e-4))
    facts = DivergenceFacts(float(losses[311]), 1.54, 9.0, 4.0, 12, 16)
    episode = over_steps("divergence", Severity.CRITICAL, 311, 311, COUNT - 1, metric="loss", facts=facts)
    look = learning_rate_check(episode_context(episode, history, run_curves(history)))
    assert look.ruled_out == "learning rate: constant at 0.0003; at this rate the loss fell from 4.44 to 1.54"


def test_a_constant_rate_at_which_the_loss_had_not_fallen_is_neither_the_cause_nor_ruled_out() -> None:
    losses = np.full(COUNT, 2.0) + np.random.default_rng(1).normal(0, 0.01, COUNT)
    losses[300:] *= 5
    look = looked(run_named(loss=losses, learning_rate=np.full(COUNT, 3e-4)), 300)
    assert look.cause is None
    assert not look.ruled_out
    assert "a lower one may help" in look.not_checked


@pytest.mark.parametrize(("momentum", "start", "named"), [("0.9", 60, False), ("0.999", 60, True), ("0.98", 60, False)])
def test_a_rate_is_too_high_for_unusual_momentum_that_has_not_yet_added_up(
    momentum: str, start: int, named: bool
) -> None:
    params = {"stability.optimizer": "SGD", "stability.momentum": momentum}
    metrics = metric_of("loss", diverging_from(start)), metric_of("learning_rate", np.full(COUNT, 0.1))
    cause = looked(run_of(*metrics, params=params), start).cause
    assert (cause is not None) == named
    if cause is not None:
        assert (cause.name, cause.certainty) == ("learning_rate_too_high", "possible")
        assert "SGD with momentum 0.999 rarely tolerates learning rates above 0.001." in cause.statement
        assert cause.remedies[0].action is Action.LOWER_MOMENTUM
        assert cause.remedies[1].target == pytest.approx(0.001)


def test_a_rate_that_is_too_high_with_any_momentum_is_not_put_down_to_momentum() -> None:
    params = {"stability.optimizer": "SGD", "stability.momentum": "0.999"}
    metrics = metric_of("loss", diverging_from(60)), metric_of("learning_rate", np.full(COUNT, 0.5))
    cause = looked(run_of(*metrics, params=params), 60).cause
    assert cause is not None
    assert [remedy.action for remedy in cause.remedies] == [Action.LOWER_LEARNING_RATE]


@pytest.mark.parametrize(
    ("key", "momentum"),
    [
        ("momentum", 0.999),
        ("stability.momentum", 0.999),
        ("stability.optimizer_1.momentum", 0.999),
        ("optim/momentum", 0.999),
        ("ema.momentum", None),
        ("model/bn_momentum", None),
    ],
)
def test_only_the_momentum_of_an_optimizer_is_taken(key: str, momentum: float | None) -> None:
    assert settings_of(run_of(metric_of("loss", [1.0, 2.0]), params={key: "0.999"})).momentum == momentum


def test_a_warm_restart_is_a_jump_for_neither_the_cause_nor_the_detector() -> None:
    history = run_named(loss=diverging_from(310), learning_rate=warm_restarts())
    (rate,) = curves_of(history, "learning_rate")
    readings = [
        StepReading(step, (Signal("learning_rate"),), (value,), 0, 0.0) for step, value in enumerate(warm_restarts())
    ]
    assert replay(readings, detectors_named(["learning_rate_jump"])) == []
    assert jumps_in(rate) == []
    look = looked(history, 310)
    assert look.cause is None
    assert "restarted from 1.02e-05 to 0.001 at step 300" in look.not_checked


@pytest.mark.parametrize("seed", range(0, 20, 4))
def test_the_cause_finds_the_jumps_that_the_detector_finds(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rates = warm_restarts(int(dice.integers(40, 150))) * np.where(
        np.arange(COUNT) < dice.integers(50, 350), 1, dice.choice([0.5, 1, 2, 30])
    )
    rates[: dice.integers(1, 60)] *= 0.01
    readings = [
        StepReading(step, (Signal("learning_rate"),), (float(rate),), 0, 0.0) for step, rate in enumerate(rates)
    ]
    (curve,) = curves_of(run_of(metric_of("learning_rate", rates)), "learning_rate")
    assert [jump.step for jump in jumps_in(curve)] == [
        point.step for point in replay(readings, detectors_named(["learning_rate_jump"]))
    ]


def test_a_rate_at_which_the_loss_fell_in_an_earlier_period_is_ruled_out() -> None:
    triangle = 1e-4 + 1e-3 * np.abs((np.arange(COUNT) % 200) / 100 - 1)
    look = looked(run_named(loss=diverging_from(390), learning_rate=triangle), 390)
    assert "at this rate the loss fell" in look.ruled_out


@pytest.mark.parametrize(("at", "is_cause"), [(40, True), (360, False)])
def test_a_rate_that_fell_to_almost_nothing_long_before_the_end_is_the_cause_of_a_plateau(
    at: int, is_cause: bool
) -> None:
    steps = np.arange(400)
    rate = np.maximum(1e-3 * 10.0 ** -(steps / (at / 4)), 1e-8)
    losses = (2.3 if is_cause else 2.302) + np.random.default_rng(0).normal(0, 0.002, 400)
    run = run_of(metric_of("loss", losses), metric_of("learning_rate", rate))
    cause = diagnosis_of(run).cause
    assert (cause is not None and cause.name == "learning_rate_too_low") == is_cause
    if cause is not None and is_cause:
        assert "had fallen from 0.001 to less than 1e-06 by step 3" in cause.statement


def test_a_rate_that_did_not_fall_has_not_fallen_early() -> None:
    for rate in (np.full(COUNT, 0.002), np.r_[np.full(300, 1e-3), 1.0, np.full(99, 1e-3)]):
        run = run_of(metric_of("loss", np.full(COUNT, 2.3)), metric_of("learning_rate", rate))
        episode = over_steps("plateau", Severity.WARNING, 300, 300, 300, "", recovered=False, metric="loss")
        result = rate_too_low_check(episode_context(episode, run, run_curves(run)))
        assert result.ruled_out.startswith("learning rate too low: it reached")


@pytest.mark.parametrize(("last", "is_missing"), [(0.4, False), (1.9, True)])
def test_a_warm_up_is_not_missing_where_the_loss_fell_at_the_same_rate_afterwards(
    last: float, is_missing: bool
) -> None:
    losses = np.concatenate((np.full(6, 1.95), falling(394, first=1.9, last=last)))
    run = run_of(metric_of("loss", losses), metric_of("learning_rate", np.full(COUNT, 0.02)))
    result = looked(run, 6, "nan_detected")
    assert (result.cause is not None and result.cause.name == "no_warm_up") == is_missing
    assert ("missing warm-up: at 0.02 the loss fell" in result.ruled_out) != is_missing


def test_the_rate_of_another_optimizer_is_not_measured_by_what_the_first_one_tolerates() -> None:
    losses = np.r_[falling(300, first=2.6, last=0.5), np.geomspace(0.6, 1e4, 100)]
    rates = [
        metric_of(name, [rate] * len(steps), steps=steps, meaning=Meaning("learning_rate", place, is_known=True))
        for name, place, rate, steps in [
            ("learning_rate", "", 1e-3, range(300)),
            ("learning_rate@optimizer_1", "optimizer_1", 5.0, range(300, 400)),
        ]
    ]
    history = run_of(metric_of("loss", losses), *rates, params={"optimizer": "Adam"})
    cause = looked(history, 303).cause
    assert cause is not None
    assert cause.statement == (
        "The learning rate was 5 with the optimizer that took over at step 300; with the one before, it was at most "
        "0.001."
    )
    assert str(cause.remedies[0]).startswith("Lower the learning rate from 5 to about 0.1")


@pytest.mark.parametrize(("rate", "statement"), [(0.1, "The learning rate was 0.1 with"), (1e-3, "The data or the ")])
def test_no_data_are_named_where_an_optimizer_took_over_at_a_far_higher_rate(rate: float, statement: str) -> None:
    losses = np.r_[falling(300, last=0.5), [0.5, 0.5], np.full(4, 300.0), np.linspace(40, 20, 94)]
    norms = np.r_[1 + 0.1 * np.sin(np.arange(302)), np.full(98, 500.0)]
    rates = [
        metric_of(name, [value] * len(steps), steps=steps, meaning=Meaning("learning_rate", place, is_known=True))
        for name, place, value, steps in [
            ("learning_rate", "", 1e-3, range(300)),
            ("learning_rate@optimizer_1", "optimizer_1", rate, range(300, 400)),
        ]
    ]
    event = over_steps("divergence", Severity.CRITICAL, 302, 302, COUNT - 1, "", recovered=False, metric="loss")
    metrics = metric_of("loss", losses), metric_of("grad_norm", norms)
    cause = diagnosis_of(run_of(*metrics, *rates, events=[event], params={"optimizer": "Adam"})).cause
    assert cause is not None
    assert cause.statement.startswith(statement)
