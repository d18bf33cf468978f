from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from diagnosis.histories import run_named

from mlflow_stability.analysis.diagnose import asked_detectors
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import scale_thresholds
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import default_detectors, name_of
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.vocabulary.judging import FACTORS
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory

CLASSIC = ("loss_spike:classic", "divergence:classic", "gradient_explosion:classic")
KINDS = {"loss_spike": LossSpike, "gradient_explosion": GradientExplosion}


def beside_default(*own: Any) -> Sequence[Detector]:
    return asked_detectors(["default", *own], "normal") or ()


def alone(kind: str, threshold: float) -> Detector:
    detector: Detector = KINDS[kind](threshold=threshold, threshold_alone=True)
    return detector


def test_the_default_detectors_by_name_are_those_that_look_anyway() -> None:
    assert asked_detectors(None, "normal") is None
    assert beside_default() == default_detectors()
    assert asked_detectors("default", "high") == asked_detectors(None, "high")


def test_a_detector_beside_the_default_ones_takes_the_place_of_the_one_of_its_name() -> None:
    own = GradientExplosion(threshold=20)
    result = beside_default(own)
    assert set(result) - set(default_detectors()) == {own}
    assert set(default_detectors()) - set(result) == {GradientExplosion()}
    at_high = asked_detectors([own, "default"], "high") or ()
    assert own in at_high
    assert scale_thresholds(LossSpike(), FACTORS["high"]) in at_high


def test_nothing_above_a_threshold_that_decides_alone_counts_as_calm() -> None:
    for kind in KINDS:
        own = alone(kind, 3.0)
        assert (own.calm_below, own.calm_steps) == (3.0, 1)  # type: ignore[attr-defined]
        assert alone(kind, 20.0).calm_below == KINDS[kind]().calm_below  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [30, 120, 2000])
def test_a_threshold_of_three_finds_a_loss_that_is_four_deviations_up(count: int) -> None:
    losses = 2.0 * np.exp(0.01 * np.clip(np.random.default_rng(2).standard_normal(count), -2, 2))
    losses[count // 2] = 2.0 * np.exp(0.045)
    history = run_named(loss=losses)

    def spike_peaks(threshold: float | None) -> list[int]:
        own = () if threshold is None else (alone("loss_spike", threshold),)
        episodes = diagnosis_of(history, detectors=beside_default(*own)).findings
        return [episode.peak for episode in episodes if episode.kind == "loss_spike"]

    assert spike_peaks(None) == spike_peaks(8.0) == []
    assert count // 2 in spike_peaks(3.0)


def test_a_sensitivity_moves_the_usual_detectors_and_no_others() -> None:
    assert asked_detectors(None, "normal") is None
    assert LossSpike() not in (asked_detectors(None, "high") or ())
    assert asked_detectors((LossSpike(),), "normal") == (LossSpike(),)
    with pytest.raises(SettingsError, match="not both"):
        asked_detectors((LossSpike(),), "low")
    with pytest.raises(SettingsError, match="sensitivity must be 'low', 'normal' or 'high'; got 'hgih'"):
        asked_detectors(None, "hgih")


def test_names_follow_the_other_arguments_and_detectors_stay_as_they_are() -> None:
    own = GradientExplosion(threshold=7.0)
    assert asked_detectors(["loss_spike", own], "high") == (scale_thresholds(LossSpike(), FACTORS["high"]), own)
    assert asked_detectors("loss_spike", "normal") == (LossSpike(),)
    assert asked_detectors(own, "normal") == (own,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["los_spike"], "There is no detector 'los_spike'; did you mean loss_spike"),
        ([LossSpike], "detectors= takes names such as 'loss_spike', 'default', or detectors such as LossSpike"),
        ([10], "detectors= takes names .* got 10"),
        (10, "detectors must be names such as .*; got 10"),
        ([LossSpike(threshold="10")], r"LossSpike\(threshold=...\) must be a number; got '10'"),  # type: ignore[arg-type]
        ([LossSpike(threshold=float("nan"))], r"LossSpike\(threshold=...\) must be a number; got nan"),
        (["loss_spike", LossSpike(threshold=10)], "detectors= has loss_spike twice, with different thresholds"),
    ],
)
def test_what_is_no_detector_is_refused(given: Any, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        asked_detectors(given, "normal")


def walk(count: int = 600) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Values around 2 with heavy tails, of which a few are 5 σ and more above their level by nature."""
    noise = np.random.default_rng(5).standard_t(3, count)
    return np.asarray(2.0 * np.exp(0.02 * np.clip(noise, -3, 6)))


def starts(kind: str, history: RunHistory, *own: Detector) -> list[int]:
    episodes = diagnosis_of(history, detectors=beside_default(*own)).findings
    return [episode.start for episode in episodes if episode.kind == kind]


@pytest.mark.parametrize(("kind", "metric"), [("loss_spike", "loss"), ("gradient_explosion", "grad_norm")])
def test_a_lower_threshold_finds_all_that_a_higher_one_finds_and_more(kind: str, metric: str) -> None:
    history = run_named(**{"loss": np.full(600, 2.0), metric: walk()})
    by_number = {number: starts(kind, history, alone(kind, number)) for number in (3.0, 5.0, 12.0)}
    assert starts(kind, history) == by_number[12.0] == []
    assert len(by_number[3.0]) > len(by_number[5.0]) > 0
    wide = diagnosis_of(history, detectors=beside_default(alone(kind, 3.0))).findings
    assert all(any(process.start <= step <= process.end for process in wide) for step in by_number[5.0])


@pytest.mark.parametrize(("kind", "metric"), [("loss_spike", "loss"), ("gradient_explosion", "grad_norm")])
def test_a_finding_by_a_threshold_of_ones_own_lies_above_it_and_says_so(kind: str, metric: str) -> None:
    history = run_named(**{"loss": np.full(600, 2.0), metric: walk()})
    findings = diagnosis_of(history, detectors=beside_default(alone(kind, 4.0))).findings
    own = [finding for finding in findings if finding.kind == kind]
    assert own
    for finding in own:
        assert finding.severity is Severity.WARNING
        assert finding.metrics["z"] >= 4.0
        assert "threshold 4σ" in finding.message


def test_a_classic_rule_takes_the_place_of_every_detector_of_its_kind_and_of_no_other() -> None:
    names = {name_of(item) for item in beside_default(*CLASSIC)}
    usual = {name_of(detector) for detector in default_detectors()}
    assert names - usual == set(CLASSIC)
    assert usual - names == {"loss_spike", "divergence", "divergence:start", "gradient_explosion"}


def test_a_classic_divergence_that_recovered_stays_critical_on_a_log() -> None:
    losses = 1.0 + 3 * np.exp(-np.arange(600.0) / 200) + 0.1 * np.sin(np.arange(600.0))
    losses[300:306] *= 3
    history = run_named(loss=losses)
    findings = diagnosis_of(history, detectors=beside_default(*CLASSIC)).findings
    assert [(finding.kind, finding.severity, finding.start) for finding in findings] == [
        ("divergence", Severity.CRITICAL, 302)
    ]
    assert [finding.kind for finding in diagnosis_of(history).findings] == ["loss_spike"]


def test_a_classic_explosion_stays_a_warning_where_the_loss_did_not_answer() -> None:
    norms = walk()
    norms[400] = 130.0
    history = run_named(loss=walk(), grad_norm=norms)
    findings = diagnosis_of(history, detectors=beside_default(*CLASSIC)).findings
    (explosion,) = (process for process in findings if process.start == 400)
    assert (explosion.kind, explosion.severity) == ("gradient_explosion", Severity.WARNING)
