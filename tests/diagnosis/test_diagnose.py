from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of
from findings import at_step
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Gap
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

nan, inf = math.nan, math.inf


def test_a_healthy_run_is_called_healthy_with_numbers() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", np.linspace(4.61, 1.78, 1000), steps=range(1, 1001))))
    assert diagnosis.outcome == "healthy"
    assert diagnosis.verdict == "Healthy: loss fell from 4.594 to 1.787 in 1,000 steps; no warnings."
    assert (diagnosis.severity, diagnosis.steps, diagnosis.points) == (Severity.INFO, (1, 1000), 1000)


@pytest.mark.parametrize("values", [[], [1.0], [3.0, 2.0, 1.0]])
def test_too_few_points_are_never_called_healthy(values: list[float]) -> None:
    diagnosis = diagnosis_of(run_named(loss=values))
    assert diagnosis.outcome == "cannot_tell"
    assert diagnosis.verdict.startswith("Cannot tell: ")
    assert diagnosis.cannot_tell


def test_a_run_without_a_loss_is_never_called_healthy() -> None:
    diagnosis = diagnosis_of(run_named(accuracy=np.linspace(0, 1, 100)))
    assert (diagnosis.outcome, diagnosis.verdict) == ("cannot_tell", "Cannot tell: no loss among its metrics.")


def test_a_run_of_a_game_is_not_called_healthy_by_its_losses() -> None:
    diagnosis = diagnosis_of(run_named(generator_loss=falling(100), discriminator_loss=falling(100)))
    assert diagnosis.outcome == "cannot_tell"
    assert any("was not judged" in str(value) for value in diagnosis.cannot_tell)


def test_a_very_short_run_that_broke_is_still_called_broken() -> None:
    assert diagnosis_of(run_named(loss=[3.0, 2.0, nan])).outcome == "broken"


@pytest.mark.parametrize(
    ("outcome", "change"),
    [
        ("broken", lambda losses: np.r_[losses[:200], np.full(200, nan)]),
        ("diverged", lambda losses: np.r_[losses[:200], np.linspace(2, 9, 200)]),
        ("unstable", lambda losses: np.r_[losses[:200], 9.0, losses[201:]]),
        ("unstable", lambda losses: np.r_[losses[:200], nan, losses[201:]]),
        ("stuck", lambda losses: 4.0 + (losses - losses) + np.random.default_rng(0).normal(0, 0.02, 400)),
        ("healthy", lambda losses: losses),
    ],
)
def test_outcomes(outcome: str, change: object) -> None:
    diagnosis = diagnosis_of(run_named(loss=change(falling(400))))  # type: ignore[operator]
    assert diagnosis.outcome == outcome
    assert diagnosis.verdict.startswith(outcome.capitalize())
    assert bool(diagnosis.remedies) == (outcome != "healthy")


def test_a_run_that_was_killed_in_good_health_is_called_killed() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", falling(100)), outcome="killed", outcome_detail="signal 9"))
    assert (diagnosis.outcome, diagnosis.ended) == ("killed", "killed")
    assert diagnosis.verdict == "Killed: The process was killed after step 99: signal 9."


@pytest.mark.parametrize(("first", "every", "steps"), [(0, 1, 200), (1, 1, 200), (0, 10, 1990), (5000, 1, 200)])
def test_the_steps_of_a_course_are_counted_as_the_script_counts_them(first: int, every: int, steps: int) -> None:
    loss = metric_of("loss", np.linspace(5, 3, 200), steps=first + every * np.arange(200))
    assert f" in {steps:,} steps" in diagnosis_of(run_of(loss)).verdict


def test_no_finding_is_reported_for_a_run_that_its_user_interrupted() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", falling(100)), outcome="interrupted"))
    assert (diagnosis.outcome, diagnosis.findings) == ("interrupted", ())


def test_findings_recorded_during_training_are_not_judged_again() -> None:
    event = at_step(50, "gradient_explosion", Severity.WARNING, "The gradient norm is 9.", evidence={"grad_norm": 9.0})
    losses = falling(400)
    losses[200] *= 3  # without an event while it trained
    recorded = run_of(metric_of("loss", losses), events=[event])
    assert [finding.kind for finding in diagnosis_of(recorded).findings] == ["gradient_explosion"]
    assert [finding.kind for finding in diagnosis_of(run_of(metric_of("loss", losses))).findings] == ["loss_spike"]


def test_findings_on_whole_curves_are_added_to_those_recorded_during_training() -> None:
    losses = np.r_[falling(200), np.linspace(1.6, 5, 200)]
    assert diagnosis_of(run_of(metric_of("loss", losses), events=[])).outcome == "diverged"


def test_a_validation_that_no_detector_saw_is_judged_afterwards() -> None:
    broken, losses = np.r_[falling(30), nan, nan], falling(320)
    names = ["train_loss", "val_loss"]
    meanings = metric_meanings(names)
    history = run_of(
        metric_of("train_loss", losses, meaning=meanings["train_loss"]),
        metric_of("val_loss", broken, meaning=meanings["val_loss"], steps=10 * np.arange(32)),
        events=[],
    )
    assert [(finding.kind, finding.start) for finding in diagnosis_of(history).findings] == [("nan_detected", 300)]


def test_for_thinned_points_only_whole_curves_are_judged_and_a_note_says_so() -> None:
    losses = falling(200)
    losses[100] *= 3
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), complete=False))
    assert [finding.kind for finding in diagnosis.findings] == ["loss_spike"]
    assert any("sparse curves" in note for note in diagnosis.notes)


def test_neighbouring_spikes_are_one_episode_and_distant_ones_are_two() -> None:
    near, far = falling(600), falling(600)
    near[[400, 401, 403]] *= 3
    far[[300, 500]] *= 3
    assert len(diagnosis_of(run_named(loss=near)).findings) == 1
    assert [finding.start for finding in diagnosis_of(run_named(loss=far)).findings] == [300, 500]


def test_the_parts_of_a_loss_do_not_repeat_what_its_whole_says() -> None:
    whole = falling(400)
    whole[200] *= 3
    diagnosis = diagnosis_of(run_named(total_loss=whole, loss_cls=whole * 0.6, loss_box=whole * 0.4))
    assert [(finding.kind, finding.metric) for finding in diagnosis.findings] == [("loss_spike", "total_loss")]


def test_several_runs_in_one_file_are_judged_separately() -> None:
    losses = np.concatenate([falling(50), falling(50, seed=1), falling(50, seed=2)])
    steps, attempts = np.tile(np.arange(50), 3), np.repeat([0, 1, 2], 50)
    assert diagnosis_of(run_of(metric_of("loss", losses, steps=steps, attempts=attempts))).outcome == "healthy"


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([0.0, 1.0, 2.5, -1.0, 1e-300, 1e300, 1.7976931348623157e308, nan, inf, -inf]),
)
names = st.sampled_from(["loss", "val_loss", "grad_norm", "learning_rate", "loss_scale", "loss_cls", "reward"])


@settings(max_examples=60)
@given(st.dictionaries(names, st.lists(numbers, max_size=60), max_size=4), st.integers(1, 5), st.booleans())
def test_no_history_whatever_breaks_a_diagnosis_and_the_same_gives_the_same(
    series: dict[str, list[float]], stride: int, complete: bool
) -> None:
    meanings = metric_meanings(series)
    metrics = [
        metric_of(name, values, meaning=meanings[name], steps=stride * np.arange(len(values)))
        for name, values in series.items()
    ]
    history = run_of(*metrics, complete=complete)
    first = diagnosis_of(history)
    assert repr(first) == repr(diagnosis_of(history))
    assert first.outcome
    assert first.verdict.endswith(".")
    for finding in first.findings:
        assert finding.start <= finding.peak <= finding.end
        assert finding.kind
        assert finding.message


def test_the_verdict_on_a_noisy_loss_uses_its_trend_and_not_its_first_and_last_value() -> None:
    noise = np.exp(np.random.default_rng(1).normal(0, 0.15, 500))
    verdict = diagnosis_of(run_named(loss=np.linspace(4, 2, 500) * noise)).verdict
    assert verdict == "Healthy: loss (noisy) fell from about 3.89 to 2.16 in 500 steps; no warnings."


def test_a_noisy_loss_that_fell_in_its_first_steps_fell_from_where_it_began() -> None:
    noise = np.exp(np.random.default_rng(1).normal(0, 0.15, 400))
    verdict = diagnosis_of(run_named(loss=(0.056 + np.exp(-np.arange(400) / 8)) * noise)).verdict
    assert re.match(r"Healthy: loss \(noisy\) fell from about (0\.[89]|1)\d* to 0\.05\d+ in 400 steps", verdict)


def test_steps_that_could_not_be_recorded_are_named_as_not_judged() -> None:
    history = replace(run_of(metric_of("loss", falling(50))), gaps=(Gap(10, 14, "disk full"),))
    assert "Steps missing from the record: 10-14." in map(str, diagnosis_of(history).cannot_tell)


def test_of_several_trainings_in_one_log_the_verdict_tells_the_longest() -> None:
    losses = np.concatenate([falling(10), falling(200, first=4.0, last=0.5)])
    steps, attempts = [*range(10), *range(200)], [0] * 10 + [1] * 200
    verdict = diagnosis_of(run_of(metric_of("loss", losses, steps=steps, attempts=attempts))).verdict
    assert "in 200 steps" in verdict


def test_a_short_validation_beside_a_loss_without_a_level_is_not_called_healthy() -> None:
    policy, validation = (
        metric_of("policy_loss", falling(100)),
        metric_of("val_loss", [0.5, 0.4, 0.3], steps=[0, 9, 99]),
    )
    assert diagnosis_of(run_of(policy, validation)).outcome == "cannot_tell"
