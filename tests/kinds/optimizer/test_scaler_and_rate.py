from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from detectors.series import decaying, judged, noise

from mlflow_stability.vocabulary.result import Finding, Severity


def scaler(changes: Iterable[tuple[int, float]], steps: int = 1000) -> tuple[list[float], list[float]]:
    """The skipped steps and scales of a scaler whose scale changes at these steps; each fall is a skipped step."""
    at, scale, skipped = dict(changes), 65536.0, 0.0
    skips, scales = [], []
    for step in range(steps):
        factor = at.get(step, 1.0)
        skipped += factor < 1
        scale *= factor
        skips.append(skipped)
        scales.append(scale)
    return skips, scales


def events(changes: Iterable[tuple[int, float]]) -> list[Finding]:
    skips, scales = scaler(changes)
    return judged("loss_scale_collapse step_skipped", skipped_steps=skips, loss_scale=scales)


def test_the_search_for_a_first_scale_is_no_finding() -> None:
    assert events((step, 0.5) for step in range(12)) == []


def test_a_scale_that_alternately_grows_and_falls_is_no_finding() -> None:
    assert events([(200, 2.0), (201, 0.5), (500, 2.0), (501, 0.5), (800, 2.0), (801, 0.5)]) == []


def test_five_falls_without_growth_are_a_collapse() -> None:
    result = [e for e in events((step, 0.5) for step in range(300, 400, 10)) if e.kind == "loss_scale_collapse"]
    assert [(e.step, e.severity) for e in result] == [(340, Severity.CRITICAL)]


def test_growth_of_the_scale_restarts_the_count_of_skipped_steps() -> None:
    changes = [(300, 0.5), (310, 0.5), (320, 0.5), (330, 2.0), (340, 0.5), (350, 0.5), (360, 0.5)]
    assert [e.kind for e in events(changes)] == ["step_skipped"]


def test_the_floor_counts_even_in_the_search() -> None:
    (collapse,) = [e for e in events((step, 0.5) for step in range(30)) if e.kind == "loss_scale_collapse"]
    assert (collapse.step, collapse.metrics["loss_scale"]) == (15, 1.0)


def test_three_skips_in_300_are_a_warning_and_sixteen_critical() -> None:
    skips = [e for e in events((step, 0.9) for step in range(400, 480, 4)) if e.kind == "step_skipped"]
    assert [(e.step, e.severity) for e in skips] == [(408, Severity.WARNING), (460, Severity.CRITICAL)]


def test_one_skip_without_a_scaler_is_a_warning() -> None:
    (event,) = judged("step_skipped", skipped_steps=[0.0] * 5 + [1.0] * 20)
    assert (event.step, event.severity) == (5, Severity.WARNING)


steps = np.arange(1000)
SCHEDULES = {
    "constant": np.full(1000, 3e-4),
    "linear warm-up from nothing": 1e-3 * np.minimum(steps / 100, 1),
    "linear warm-up from almost nothing": 1e-3 * np.minimum(1e-5 + steps / 100, 1),
    "warm-up and cosine": 1e-3 * np.minimum(steps / 100, 1) * (1 + np.cos(np.pi * steps / 1000)) / 2,
    "cosine with warm restarts": 1e-3 * (1 + np.cos(np.pi * (steps % 200) / 200)) / 2,
    "cycles": 1e-3 * (0.1 + np.abs((steps % 100) / 50 - 1)),
    "warm-up in stairs": 1e-4 * np.minimum(steps // 100 + 1, 5),
    "torch's ConstantLR": np.where(steps < 300, 1e-3 / 3, 1e-3),
    "falls in stairs": 1e-3 * 0.1 ** (steps // 300),
    "one cycle": 1e-3 * np.where(steps < 300, 0.04 + 0.96 * steps / 300, (1000 - steps) / 700),
    "lowered by hand and raised again": np.where((steps > 300) & (steps < 400), 1e-5, 1e-3),
    "inverse square root": 1e-2 * np.minimum((steps + 1) ** -0.5, (steps + 1) * 200**-1.5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_is_a_jump(name: str) -> None:
    assert judged("learning_rate_jump", learning_rate=SCHEDULES[name]) == []


def test_a_rate_that_follows_the_length_of_each_batch_jumps_far_above_its_maximum_alone() -> None:
    rate = 0.1 * np.maximum(5, np.random.default_rng(0).normal(20, 5, 1000).astype(int)) / 20
    assert judged("learning_rate_jump", learning_rate=rate) == []
    rate[500:] *= 4
    assert judged("learning_rate_jump", learning_rate=rate)


@pytest.mark.parametrize("name", ["constant", "warm-up and cosine", "falls in stairs", "cosine with warm restarts"])
@pytest.mark.parametrize("factor", [20.0, 1000.0])
def test_a_learning_rate_far_above_its_maximum_is_a_jump(name: str, factor: float) -> None:
    broken = SCHEDULES[name].copy()
    broken[550:] = broken.max() * factor
    (event,) = judged("learning_rate_jump", learning_rate=broken)
    assert (event.step, event.severity) == (550, Severity.WARNING)


@pytest.mark.parametrize(("constant", "jumps"), [(1500, [1500]), (1000, [1000]), (900, [])])
def test_a_rate_that_doubles_after_a_long_time_without_a_change_is_a_jump(constant: int, jumps: list[int]) -> None:
    rate = np.where(np.arange(constant + 100) < constant, 1e-3, 2e-3)
    assert [event.step for event in judged("learning_rate_jump", learning_rate=rate)] == jumps


@pytest.mark.parametrize(("after", "worse_at"), [(1.9, None), (2.4, None), (2.9, 29), (400.0, 29), (math.nan, 29)])
def test_a_jump_of_what_may_be_a_warm_up_is_a_warning_once_the_loss_is_worse(
    after: float, worse_at: int | None
) -> None:
    rate = np.where(np.arange(120) < 20, 1e-5, np.where(np.arange(120) < 40, 1e-3, 2e-3))
    loss = np.where(np.arange(120) < 20, 2.0, after) * (1 + noise(0, 120, 0.02))
    result = [(event.step, event.severity) for event in judged("learning_rate_jump", loss=loss, learning_rate=rate)]
    expected = [(20, Severity.INFO)]
    assert result == (expected if worse_at is None else [*expected, (worse_at, Severity.WARNING)])


@pytest.mark.parametrize("epoch", [19, 300, 1251])
@pytest.mark.parametrize("first", [1e-5, 4e-5])
def test_a_warm_up_that_rises_once_an_epoch_is_no_warning(epoch: int, first: float) -> None:
    stages = np.linspace(first, 0.5, 6)
    rate = np.concatenate([np.repeat(stages, epoch), 0.5 * np.cos(np.linspace(0, 1.5, 5 * epoch))])
    findings = judged("learning_rate_jump", loss=decaying(len(rate), 1.5, 6.9), learning_rate=rate)
    assert [(event.step, event.severity) for event in findings] == [(epoch, Severity.INFO)]
    rate[3 * epoch :] *= 20
    findings = judged("learning_rate_jump", loss=decaying(len(rate), 1.5, 6.9), learning_rate=rate)
    assert [(event.step, event.severity) for event in findings] == [
        (epoch, Severity.INFO),
        (3 * epoch, Severity.WARNING),
    ]


def test_a_jump_after_the_warm_up_is_a_warning_at_once() -> None:
    rate = np.where(np.arange(120) < 20, 1e-3, np.where(np.arange(120) < 60, 5e-4, 1e-2))
    (event,) = judged("learning_rate_jump", loss=2.0 + noise(0, 120, 0.02), learning_rate=rate)
    assert (event.step, event.severity) == (60, Severity.WARNING)


def test_parameter_groups_that_jump_together_are_one_finding() -> None:
    rate = np.where(steps < 500, 1e-3, 1e-1)
    series = {"learning_rate": rate, "learning_rate@group_1": rate / 10}
    assert [event.step for event in judged("learning_rate_jump", **series)] == [500]


def test_a_rate_that_hardly_any_training_uses_is_named() -> None:
    assert judged("learning_rate_out_of_range", learning_rate=SCHEDULES["warm-up and cosine"]) == []
    (high,) = judged("learning_rate_out_of_range", learning_rate=np.full(100, 0.5))
    (low,) = judged("learning_rate_out_of_range", learning_rate=np.full(1000, 1e-12))
    assert (high.step, low.step, high.severity, low.severity) == (19, 999, Severity.INFO, Severity.INFO)
