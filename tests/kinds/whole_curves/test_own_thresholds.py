"""The rules for whole curves follow the thresholds that a user gave the detector of their kind."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, run_named

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds import Divergence, GradientExplosion, LossSpike, Overfitting, Plateau
from mlflow_stability.kinds.catalog import RULES, default_detectors, detectors_named, name_of
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.run import RunHistory


def kinds(history: RunHistory, detector: Detector) -> list[str]:
    return [episode.kind for episode in diagnosis_of(history, detectors=[detector]).findings]


def spike(times: float, below: float = 0.0) -> RunHistory:
    """A sparse log with one high point, too short for the detector."""
    losses = falling(40, noise=0.01) - below
    losses[25] += (times - 1) * abs(losses[25])
    return run_named(loss=losses)


def end(times: float) -> RunHistory:
    """A log whose last four points are high."""
    losses = falling(120, noise=0.005)
    losses[-4:] *= times
    return run_named(loss=losses)


def growth() -> RunHistory:
    """A gradient norm that grows by a factor of 400 while the loss rises."""
    steps = np.arange(300)
    norms = np.exp(np.interp(steps, [0, 150, 299], [0.0, 0.0, np.log(400.0)]))
    return run_named(loss=np.interp(steps, [0, 150, 299], [3.0, 1.0, 2.0]), grad_norm=norms)


def stuck() -> RunHistory:
    """A loss that fell by 2 %."""
    return run_named(loss=2.3 - 0.046 * np.linspace(0, 1, 60) + 0.002 * np.sin(np.arange(60.0)))


def overfit() -> RunHistory:
    """A validation loss that rose by a third."""
    steps = np.arange(60)
    return run_named(loss=4 * np.exp(-steps / 20), val_loss=np.interp(steps, [0, 20, 60], [4.0, 2.0, 2.6]))


@pytest.mark.parametrize(
    ("history", "usual", "own"),
    [
        (spike(1.6), LossSpike(), LossSpike(smallest_rise=2.0)),
        (spike(1.6), LossSpike(), LossSpike(threshold=400.0)),
        (spike(1.6, below=9.0), LossSpike(), LossSpike(threshold_of_differences=4000.0)),
        (end(2.5), Divergence(), Divergence(smallest_rise=3.0)),
        (growth(), GradientExplosion(), GradientExplosion(smallest_rise=1000.0, row_smallest_rise=1000.0)),
        (stuck(), Plateau(), Plateau(stuck_gain=0.001)),
        (overfit(), Overfitting(), Overfitting(smallest_rise=1.5)),
    ],
    ids=lambda value: "" if isinstance(value, RunHistory) else repr(value)[:60],
)
def test_what_the_usual_thresholds_find_is_not_found_by_stricter_ones(
    history: RunHistory, usual: Detector, own: Detector
) -> None:
    assert kinds(history, usual) == [usual.kind]
    assert kinds(history, own) == []


def test_a_lower_threshold_finds_what_the_usual_one_does_not() -> None:
    assert kinds(spike(1.15), LossSpike()) == []
    assert kinds(spike(1.15), LossSpike(smallest_rise=1.04, threshold=4.0)) == ["loss_spike"]


def test_one_threshold_leaves_the_others_of_a_rule_as_they_are() -> None:
    (rule,) = (finding() for finding in RULES if finding.kind == "loss_spike")
    assert rule.like(LossSpike(threshold=16.0)).smallest_jump == rule.smallest_jump  # type: ignore[attr-defined]
    assert rule.like(LossSpike(smallest_rise=2.0)).deviations == rule.deviations  # type: ignore[attr-defined]
    assert rule.like(LossSpike(returns=5)).returns == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("rule", RULES)
def test_the_default_thresholds_change_no_rule(rule: type[Rule]) -> None:
    assert [name_of(detector) for detector in default_detectors() if rule().like(detector) != rule()] == []


def test_a_detector_by_name_and_one_with_thresholds_judge_together() -> None:
    both = [*detectors_named(["divergence"]), LossSpike(threshold=10)]
    losses = falling(600)
    losses[300] *= 8
    assert [finding.kind for finding in diagnosis_of(run_named(loss=losses), detectors=both).findings] == ["loss_spike"]
