"""What the last hundred steps say together is what plain numpy says of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from session.interrupting import Moments

from mlflow_stability.probes.step.rolling_statistics import RollingStatistics
from mlflow_stability.vocabulary.measured.signal import Signal

SIGNALS = (Signal("loss"), Signal("grad_norm"), Signal("grad_norm_clipped"))


def test_every_number_is_that_of_the_last_hundred_steps() -> None:
    rng = np.random.default_rng(0)
    losses, norms = 3 + 0.1 * rng.standard_normal(250), rng.lognormal(size=250)
    numbers = RollingStatistics(every=10)
    for step in range(1, 251):
        norm = norms[step - 1]
        result = numbers.take(step, SIGNALS, (losses[step - 1], norm, min(norm, 1.0)))
    by_quantity = {signal.quantity: value for signal, value in result}
    window = losses[150:]
    assert by_quantity["loss_trend"] == pytest.approx(np.polyfit(np.arange(100), window, 1)[0])
    assert by_quantity["loss_zscore"] == pytest.approx((window[-1] - window.mean()) / window.std())
    assert (by_quantity["loss_mean"], by_quantity["loss_std"]) == pytest.approx((window.mean(), window.std()))
    assert (by_quantity["grad_norm_mean"], by_quantity["grad_norm_std"]) == pytest.approx(
        (norms[150:].mean(), norms[150:].std())
    )
    assert by_quantity["grad_variance"] == pytest.approx(norms[150:].var())
    assert by_quantity["clip_fraction"] == pytest.approx((norms[150:] > 1).mean())
    weights = 0.98 ** np.arange(249, -1, -1)
    assert by_quantity["loss_ema"] == pytest.approx(weights @ losses / weights.sum())


def test_nothing_is_reported_between_intervals_or_for_too_few_steps() -> None:
    numbers = RollingStatistics(every=4)
    result = [numbers.take(step, SIGNALS[:1], (1.0,)) for step in range(1, 13)]
    assert [step for step, item in enumerate(result, start=1) if item] == [12]


def test_values_that_are_not_finite_are_left_out() -> None:
    numbers = RollingStatistics(every=20)
    for step in range(1, 21):
        result = numbers.take(step, SIGNALS[:2], (math.nan if step % 4 == 0 else 2.0, math.inf if step == 9 else 1.0))
    assert dict(result)[Signal("loss_ema")] == pytest.approx(2.0)
    assert dict(result)[Signal("grad_variance")] == 0.0


def test_trainings_side_by_side_are_kept_apart() -> None:
    numbers = RollingStatistics(every=10)
    first, second = (Signal("loss"),), (Signal("loss", "track_1"),)
    rows: list[tuple[Signal, float]] = []
    for step in range(1, 41):
        rows += numbers.take(step, first if step % 2 else second, (1.0 if step % 2 else 5.0,))
    last = dict(rows)
    assert last[Signal("loss_ema")] == pytest.approx(1.0)
    assert last[Signal("loss_ema", "track_1")] == pytest.approx(5.0)


def test_after_a_reset_the_steps_before_count_no_more() -> None:
    numbers = RollingStatistics(every=10)
    for step in range(1, 31):
        numbers.take(step, SIGNALS[:1], (100.0,))
    numbers.reset()
    for step in range(31, 51):
        result = numbers.take(step, SIGNALS[:1], (1.0,))
    assert dict(result)[Signal("loss_ema")] == pytest.approx(1.0)


def test_an_interrupted_step_counts_fully_or_not_at_all_or_resets_the_statistics() -> None:
    interrupted = True
    for at in range(1, 100):
        if not interrupted:
            break
        numbers, took, missed, fresh = (RollingStatistics(every=1) for _ in range(4))
        for step in range(1, 30):
            for item in (numbers, took, missed):
                item.take(step, SIGNALS, (1.0, 2.0, 2.0))
        took.take(30, SIGNALS, (3.0, 4.0, 2.0))
        moments = Moments(at)
        try:
            with moments.counted():
                numbers.take(30, SIGNALS, (3.0, 4.0, 2.0))
            interrupted = False
        except KeyboardInterrupt:
            pass
        for step in range(31, 50):
            text, *others = (item.take(step, SIGNALS, (1.0, 2.0, 2.0)) for item in (numbers, took, missed, fresh))
        assert text in others, f"moment {at}"
    assert not interrupted


def test_the_growth_tracker_is_that_of_the_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=7)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    numbers = RollingStatistics(every=1)
    signals = (Signal("skipped_steps"), Signal("loss"), Signal("loss_scale"))
    skipped, grown_at, result = 0, 0, []
    for step in range(1, 41):
        broken = step in (12, 30)
        scale = scaler.get_scale()
        scaler.scale((weight * (math.inf if broken else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped += broken
        result.append(dict(numbers.take(step, signals, (float(skipped), 1.0, scale))))
        if scaler.get_scale() == scale:  # the step at which it changes is known at the next one
            tracker = scaler.state_dict()["_growth_tracker"]
            assert result[-1][Signal("loss_scale_growth_tracker")] == tracker, step
        assert result[-1][Signal("loss_scale_steps_since_growth")] == step - grown_at
        grown_at = step if scaler.get_scale() > scale else grown_at
    assert grown_at > 30
