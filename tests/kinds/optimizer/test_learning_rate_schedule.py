"""Learning rates of zero, and ones that rise again at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from detectors.series import judged
from diagnosis.histories import metric_of, run_of

import mlflow_stability
from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.optimizer.learning_rate_schedule import (
    LearningRateRiseRule,
    LearningRateZeroRule,
    RateRiseFacts,
    ZeroRateFacts,
)
from mlflow_stability.vocabulary.result import Action, Diagnosis, Severity

STEPS = 450
Schedule = Callable[[int], float]


def cosine(length: int) -> Schedule:
    return lambda step: 0.0015 * (1 + math.cos(math.pi * step / length))


def to_zero(length: int) -> Schedule:
    return lambda step: cosine(length)(min(step, length))


def steps_and_messages(schedule: Schedule, kind: str) -> list[tuple[int, str]]:
    rates = [schedule(step) for step in range(STEPS)]
    return [(event.step, event.message) for event in judged(kind, learning_rate=rates)]


def diagnosed(schedule: Schedule, folder: Path, every: int = 1) -> Diagnosis:
    noise = np.random.default_rng(0).normal(0, 0.02, STEPS)
    losses = 0.3 + 2 / (1 + np.arange(STEPS) / 60) + noise
    rows = [{"step": step, "loss": losses[step], "lr": schedule(step)} for step in range(0, STEPS, every)]
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return mlflow_stability.diagnose(log)


def test_a_rate_that_stays_zero_is_found_after_a_hundred_steps() -> None:
    message = "learning rate is 0 since step 150: 100 steps changed no weight; highest before: 0.003."
    assert steps_and_messages(to_zero(150), "learning_rate_zero") == [(250, message)]


def test_rates_of_an_optimizer_that_fall_evenly_to_zero_are_not_rounded() -> None:
    message = "learning rate is 0 since step 10: 100 steps changed no weight; highest before: 0.002."
    assert steps_and_messages(lambda step: 0.002 * max(0.0, 1 - step / 10), "learning_rate_zero") == [(110, message)]


def test_a_rate_that_jumps_at_its_first_step_and_then_goes_up_and_down_is_judged(tmp_path: Path) -> None:
    diagnosis = diagnosed(lambda step: 0.001 * (1 - 0.1 * (step % 2)) if step else 0.0, tmp_path)
    assert LearningRateRiseRule.kind not in {finding.kind for finding in diagnosis.findings}


def test_the_last_steps_of_a_schedule_may_have_a_rate_of_zero() -> None:
    assert steps_and_messages(to_zero(STEPS - 90), "learning_rate_zero") == []


@pytest.mark.parametrize("peak", [1e-3, 3e-4, 5e-5])
@pytest.mark.parametrize("every", [1, 10])
def test_a_learning_rate_that_a_log_rounds_to_zero_is_no_finding(tmp_path: Path, peak: float, every: int) -> None:
    rounded = diagnosed(lambda step: round(cosine(STEPS)(step) * peak / 0.003, 4), tmp_path, every)
    assert rounded.outcome == "healthy"
    assert rounded.findings == ()


def test_a_rate_that_is_halved_until_six_decimals_show_zeros_is_no_finding(tmp_path: Path) -> None:
    halved = diagnosed(lambda step: round(0.001 * 0.5 ** (step // (STEPS // 15)), 6), tmp_path)
    assert halved.findings == ()
    exact = diagnosed(lambda step: 0.001 * 0.5 ** (step // (STEPS // 15)) * (step < 0.75 * STEPS), tmp_path)
    assert [finding.kind for finding in exact.findings] == ["learning_rate_zero"]


def test_in_a_long_training_a_hundred_steps_are_few() -> None:
    rates = [0.1] * 3999 + [0.0001] + [0.0] * 205
    assert judged("learning_rate_zero", learning_rate=rates) == []
    (event,) = judged("learning_rate_zero", learning_rate=[*rates, *[0.0] * 20])
    assert event.step == 4211


def stepped_per_batch(factor: float) -> Schedule:
    """A schedule that is meant for epochs, stepped once a batch."""
    return lambda step: 0.003 * factor**step


def test_a_rate_that_vanishes_is_found_as_zero() -> None:
    message = (
        "learning rate is almost 0 since step 175, now 8e-14: 100 steps changed almost no weight; highest before: "
        "0.003."
    )
    assert steps_and_messages(lambda step: 0.003 * 0.9**step if step < 232 else 8e-14, "learning_rate_zero") == [
        (275, message)
    ]


@pytest.mark.parametrize("every", [1, 10])
def test_a_schedule_of_epochs_that_is_stepped_per_batch_is_found(tmp_path: Path, every: int) -> None:
    (finding,) = diagnosed(stepped_per_batch(0.9), tmp_path, every).findings
    assert (finding.kind, finding.severity) == ("learning_rate_zero", Severity.WARNING)
    assert isinstance(finding.facts, ZeroRateFacts)
    assert 175 <= finding.facts.since < 175 + every
    assert "once an epoch" in str(finding.remedies[0])


@pytest.mark.parametrize("factor", [0.985, 0.97])
def test_a_schedule_that_decays_far_is_healthy(tmp_path: Path, factor: float) -> None:
    assert diagnosed(stepped_per_batch(factor), tmp_path).findings == ()


def test_a_learning_rate_that_was_never_above_zero_is_no_finding() -> None:
    assert steps_and_messages(lambda _: 0.0, "learning_rate_zero") == []


def test_one_parameter_group_of_two_may_have_a_rate_of_zero() -> None:
    rates = {
        "learning_rate@group_0": [0.1] * STEPS,
        "learning_rate@group_1": [to_zero(150)(step) for step in range(STEPS)],
    }
    assert judged("learning_rate_zero", **rates) == []


def test_a_rate_that_rises_again_step_by_step_is_mentioned_once() -> None:
    ((step, message),) = steps_and_messages(cosine(225), "learning_rate_rise")
    assert step == 338
    assert message == "learning rate fell from 0.003 to 0 at step 225 and rose again, to 0.00151."
    assert len(steps_and_messages(cosine(50), "learning_rate_rise")) == 1


def test_warm_up_and_restarts_are_no_rise_after_the_end() -> None:
    assert steps_and_messages(lambda step: cosine(STEPS)(step) * min(1.0, step / 50), "learning_rate_rise") == []
    assert steps_and_messages(lambda step: cosine(50)(step % 50), "learning_rate_rise") == []


@pytest.mark.parametrize("every", [1, 10])
def test_a_training_whose_last_steps_changed_nothing_is_not_healthy(tmp_path: Path, every: int) -> None:
    (finding,) = diagnosed(to_zero(150), tmp_path, every).findings
    assert (finding.kind, finding.severity) == ("learning_rate_zero", Severity.WARNING)
    assert isinstance(finding.facts, ZeroRateFacts)
    assert finding.facts.since == 150
    assert finding.remedies[0].action is Action.MATCH_SCHEDULE_LENGTH


@pytest.mark.parametrize("every", [1, 10])
def test_a_cosine_that_is_stepped_twice_ends_at_its_peak(tmp_path: Path, every: int) -> None:
    (finding,) = diagnosed(cosine(225), tmp_path, every).findings
    assert (finding.kind, finding.severity) == ("learning_rate_rise", Severity.WARNING)
    assert isinstance(finding.facts, RateRiseFacts)
    assert abs(finding.facts.lowest_step - 225) <= every
    assert finding.facts.learning_rate == pytest.approx(0.003, rel=0.02)


def restarts(length: int) -> Schedule:
    return lambda step: cosine(length)(step % length)


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("length", [400, 200, 140])
def test_a_training_that_ends_soon_after_a_restart_ends_at_a_high_rate(tmp_path: Path, length: int, every: int) -> None:
    (finding,) = diagnosed(restarts(length), tmp_path, every).findings
    assert (finding.kind, finding.severity) == ("learning_rate_rise", Severity.WARNING)
    assert isinstance(finding.facts, RateRiseFacts)
    last_restart = STEPS // length * length
    assert last_restart - every <= finding.facts.lowest_step < last_restart


@pytest.mark.parametrize(
    "schedule",
    [
        restarts(150),  # ends with a period
        restarts(250),  # ends late in a period
        lambda step: cosine(400)(step) if step < 400 else 0.003,  # another phase, at a constant rate
        lambda step: 0.003 if step < 250 else cosine(200)(step - 250),  # constant, then one cosine
        lambda step: 0.003 * 0.1 ** (step // 150),  # in stages
    ],
)
def test_schedules_with_restarts_and_phases_are_healthy(tmp_path: Path, schedule: Schedule) -> None:
    diagnosis = diagnosed(schedule, tmp_path)
    assert all(finding.severity is Severity.INFO for finding in diagnosis.findings)


def test_rules_want_some_points_and_some_of_the_run() -> None:
    curves = run_curves(run_of(metric_of("learning_rate", np.array([to_zero(430)(step) for step in range(STEPS)]))))
    assert LearningRateZeroRule().find(curves) == []
    (finding,) = LearningRateZeroRule(share=0.04).find(curves)
    assert (finding.start, finding.end) == (430, STEPS - 1)
    assert LearningRateZeroRule(share=0.04, fewest=21).find(curves) == []
    curves = run_curves(run_of(metric_of("learning_rate", np.array([cosine(300)(step) for step in range(STEPS)]))))
    assert LearningRateRiseRule().find(curves) == []
    (finding,) = LearningRateRiseRule(high=0.45).find(curves)
    assert (finding.start, finding.end) == (300, STEPS - 1)
    assert LearningRateRiseRule(high=0.45, steps=150).find(curves) == []


@pytest.mark.parametrize("schedule", [cosine(STEPS), to_zero(STEPS), cosine(50), lambda _: 0.001])
def test_usual_and_cyclic_schedules_are_healthy(tmp_path: Path, schedule: Schedule) -> None:
    diagnosis = diagnosed(schedule, tmp_path)
    assert diagnosis.outcome == "healthy"
    assert all(finding.severity is Severity.INFO for finding in diagnosis.findings)


@pytest.mark.parametrize(("rise", "found_jump"), [(2.0, False), (40.0, True)])
def test_a_linear_warm_up_that_is_logged_every_thousand_steps_is_no_jump(rise: float, found_jump: bool) -> None:
    rates = np.append(0.03 * np.arange(11), np.full(3, 0.15 * rise))
    steps = 1050 * np.arange(14)
    run = run_of(metric_of("lr", rates, steps=steps), metric_of("loss", 3 - 0.1 * np.arange(14), steps=steps))
    kinds = {finding.kind for finding in diagnosis_of(run).findings}
    assert ("learning_rate_jump" in kinds) is found_jump
