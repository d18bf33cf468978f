"""Nothing is compared across an attempt, no cause comes later than what it explains, no setting that excludes it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step, over_steps

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.causes.catalog import causes, excluded
from mlflow_stability.diagnosis.causes.causes import check_results
from mlflow_stability.diagnosis.causes.context import episode_context
from mlflow_stability.diagnosis.checklist.checklist import checklist_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.findings.attempts import attempts_of_run
from mlflow_stability.diagnosis.recorded_settings import settings_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 400
ROLLED_BACK = 104
NO_DECAY = {"stability.optimizer": "SGD", "stability.weight_decay": "0", "stability.parameter_types": "float32"}


def measured(quantity: str, values: list[float], steps: list[int], attempts: list[int]) -> Metric:
    return metric_of(quantity, values, meaning=Meaning(quantity, is_known=True), steps=steps, attempts=attempts)


def rolled_back(*, params: dict[str, str] | None = None, is_told: bool = True) -> RunHistory:
    """The weights run away from step 90 on; at 104 they are rolled back, and at 106 there is a spike."""
    losses, steps = falling(COUNT), np.arange(COUNT)
    losses[96 : ROLLED_BACK + 1] *= np.linspace(2, 30, ROLLED_BACK - 95)
    losses[106] *= 5
    attempts = (steps > ROLLED_BACK).astype(np.int64)
    looks = list(range(0, COUNT, 10))
    norms = [10.0 + 0.01 * value for value in looks]
    norms[10] = 699.0
    events = [
        at_step(96, "divergence", Severity.CRITICAL, "loss rose.", evidence={"level": 2.0, "loss": 4.0}),
        at_step(ROLLED_BACK, "rollback", Severity.INFO, "Set back.", evidence={"target": 80.0, "steps_lost": 24.0}),
        at_step(106, "loss_spike", Severity.WARNING, "loss spiked.", attempt=1),
    ]
    return run_of(
        metric_of("loss", losses, attempts=attempts),
        measured("param_norm", norms, looks, [int(value > ROLLED_BACK) for value in looks]),
        events=events if is_told else events[:1],
        params=params,
    )


def test_a_rollback_of_our_own_is_not_blamed_on_weight_decay() -> None:
    for values in (True, False):
        history = rolled_back(is_told=values)
        for finding in diagnosis_of(history).findings:
            assert finding.cause is None or finding.cause.name != "weight_decay", finding


@pytest.mark.parametrize("is_told", [True, False])
def test_the_curves_that_a_cause_is_looked_for_in_end_with_the_attempt(is_told: bool) -> None:
    history = rolled_back(is_told=is_told)
    for start, first, last in ((96, 0, ROLLED_BACK), (106, ROLLED_BACK + 1, COUNT - 1)):
        episode = over_steps("loss_spike", Severity.WARNING, start, start, start, "", metric="loss")
        context = episode_context(episode, history, run_curves(history))
        assert context.loss is not None
        curves = (context.loss, *context.curves("param_norm"))
        assert min(int(curve.steps[0]) for curve in curves) == first
        assert max(int(curve.steps[-1]) for curve in curves) == last
        assert context.whole_loss is not None
        assert len(context.whole_loss.steps) == COUNT


def test_thinned_points_are_cut_where_the_rollback_says() -> None:
    steps = list(range(0, COUNT, 50))
    back = at_step(ROLLED_BACK, "rollback", Severity.INFO, "Set back.")
    history = run_of(metric_of("loss", np.ones(len(steps)), steps=steps), events=[back], complete=False)
    attempts = attempts_of_run(history)
    assert (attempts.around(0, 100).first, attempts.around(0, 100).last) == (0, ROLLED_BACK)
    assert attempts.around(0, 150).first == ROLLED_BACK + 1
    assert not attempts.around(0, 150).begins_training


def test_a_spike_soon_after_a_rollback_is_no_missing_warm_up() -> None:
    history = rolled_back()
    rates = metric_of("learning_rate", np.full(COUNT, 3e-4), attempts=(np.arange(COUNT) > ROLLED_BACK).astype(int))
    with_rates = run_of(*history.metrics, rates, events=history.events)
    episode = over_steps("divergence", Severity.CRITICAL, 108, 108, 120, "", recovered=False, metric="loss")
    looks = check_results(episode, with_rates, run_curves(with_rates))
    assert all(item.cause is None or item.cause.name != "no_warm_up" for item in looks)


def shrinking() -> tuple[Metric, ...]:
    looks = list(range(0, COUNT, 10))
    norms = [100.0 if value < 200 else 100 * 0.5 ** ((value - 190) / 10) for value in looks]
    losses = falling(COUNT)
    losses[205:] *= 1 + np.minimum(4, (np.arange(205, COUNT) - 204) / 10)
    return metric_of("loss", losses), measured("param_norm", norms, looks, [0] * len(looks))


@pytest.mark.parametrize(
    ("params", "changed", "named"),
    [
        ({}, "", True),
        ({"stability.weight_decay": "0.1"}, "", True),
        (NO_DECAY, "", False),
        ({"weight_decay": "0.0"}, "", False),
        ({**NO_DECAY, "stability.group_1.weight_decay": "0.1"}, "", True),
        (NO_DECAY, "weight_decay of SGD went from 0 to 0.9, seen at step 200.", True),
    ],
)
def test_weight_decay_is_named_only_where_there_is_any(params: dict[str, str], changed: str, named: bool) -> None:
    events = [at_step(200, "configuration_changed", Severity.INFO, changed)] if changed else []
    events.append(at_step(205, "divergence", Severity.CRITICAL, "loss rose."))
    history = run_of(*shrinking(), events=events, params=params)
    episode = over_steps("divergence", Severity.CRITICAL, 205, 205, 399, "", recovered=False, metric="loss")
    looks = check_results(episode, history, run_curves(history))
    assert any(item.cause is not None and item.cause.name == "weight_decay" for item in looks) is named
    assert any(item.ruled_out == "weight decay: 0" for item in looks) is not named


def test_gradients_that_grew_later_than_the_loss_do_not_explain_it() -> None:
    losses, norms = falling(COUNT), np.exp(np.random.default_rng(0).normal(0, 0.05, COUNT))
    losses[44:] = losses[44] * np.exp(np.minimum(3.0, (np.arange(44, COUNT) - 44) / 40))
    norms[92:] *= np.exp((np.arange(92, COUNT) - 92) / 60)
    episode = over_steps("divergence", Severity.CRITICAL, 44, 300, COUNT - 1, "", recovered=False, metric="loss")
    history = run_of(metric_of("loss", losses), metric_of("grad_norm", norms))
    for result in check_results(episode, history, run_curves(history)):
        assert result.cause is None or result.cause.since is None or result.cause.since <= 44, result.cause


def random_run(seed: int) -> RunHistory:
    """A training with troubles, rollbacks and settings drawn by chance."""
    dice = np.random.default_rng(seed)
    steps = np.arange(COUNT)
    begins = np.sort(dice.choice(np.arange(20, 380), int(dice.integers(0, 4)), replace=False))
    attempts = np.searchsorted(begins, steps, side="right").astype(np.int64)
    losses, norms = falling(COUNT, seed=seed), np.exp(dice.normal(0, 0.1, COUNT))
    rates, weights, scale = np.full(COUNT, 3e-4), 50 + dice.normal(0, 0.1, COUNT), np.full(COUNT, 65536.0)
    for trouble in dice.integers(0, 8, int(dice.integers(1, 4))):
        at = int(dice.integers(20, 380))
        length = int(dice.choice([1, 3, 30, 400]))
        if trouble == 0:
            losses[at : at + length] *= dice.uniform(3, 30)
        elif trouble == 1:
            losses[at : at + length] = math.nan
        elif trouble == 2:
            norms[at : at + length] *= dice.uniform(5, 100)
        elif trouble == 3:
            rates[at:] *= dice.choice([0.1, 3, 30])
        elif trouble == 4:
            weights[at : at + length] *= dice.choice([0.05, 20])
        elif trouble == 5:
            scale[at:] /= 2.0 ** np.minimum(np.arange(COUNT - at), 12)
        elif trouble == 6:
            norms[at:] *= np.exp(np.arange(COUNT - at) / 60)
        else:
            losses[at:] *= np.exp(np.minimum(3, np.arange(COUNT - at) / 40))
    for begin in begins:  # what was rolled back is as it was before
        losses[begin : begin + 5], weights[begin : begin + 5] = falling(COUNT)[begin : begin + 5], 50.0
    events = [
        at_step(int(begin) - 1, "rollback", Severity.INFO, "Set back.", attempt=number)
        for number, begin in enumerate(begins)
    ]
    named = {"loss": losses, "grad_norm": norms, "learning_rate": rates, "loss_scale": scale}
    metrics = [metric_of(name, values, attempts=attempts) for name, values in named.items()]
    looks = list(range(0, COUNT, 10))
    metrics.append(measured("param_norm", weights[::10].tolist(), looks, attempts[::10].tolist()))
    for number, kind in enumerate(("loss_spike", "divergence", "nan_detected", "gradient_explosion", "step_skipped")):
        at = int(dice.integers(20, COUNT - 1))
        if seed % 5 == number:
            events.append(at_step(at, kind, Severity.WARNING, "trouble", attempt=int(attempts[at])))
    params = dict(NO_DECAY) if seed % 2 else {}
    return run_of(*metrics, events=sorted(events, key=lambda event: event.step) if seed % 3 else None, params=params)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_run_holds_causes_keep_to_the_attempt_the_order_of_time_and_the_settings(seed: int) -> None:
    history = random_run(seed)
    attempts, settings, curves = attempts_of_run(history), settings_of(history), run_curves(history)
    for episode in diagnosis_of(history).findings:
        cause, span = episode.cause, attempts.around(episode.attempt, episode.start)
        if cause is None:
            continue
        assert not excluded(cause.name, settings), cause
        assert cause.since is None or span.first - 10 <= cause.since <= episode_context(episode, history, curves).latest
        text = " ".join((cause.statement, *cause.evidence))
        for step in map(int, re.findall(r"steps? (\d+)", text)):
            assert step in span, (cause, span)


def test_each_exclusion_has_a_setting_that_does_not_exclude_it() -> None:
    settings = settings_of(run_of(params={"stability.parameter_types": "float16", "optimizer": "Adam", "wd": "0.1"}))
    none = settings_of(run_of(params=NO_DECAY))
    excludable = [cause.name for cause in causes().values() if cause.excluded_by is not None]
    assert len(excludable) >= 3
    for name in excludable:
        assert excluded(name, none), name
        assert not excluded(name, settings), name
        assert not excluded(name, settings_of(run_of())), name


def test_the_checklist_counts_the_points_of_all_attempts() -> None:
    history = rolled_back()
    items = checklist_of("loss_spike", history, diagnosis_of(history)).items
    text = " ".join(item.finding for item in items)
    assert f"All {COUNT} points of loss are finite." in text
