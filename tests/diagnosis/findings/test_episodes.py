from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step, changed

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Finding, Severity, Text

nan, inf = math.nan, math.inf


def episodes_of(losses: np.ndarray, *events: Finding) -> list[Finding]:
    norms = metric_of("grad_norm", np.ones(len(losses)))
    return list(diagnosis_of(run_of(metric_of("loss", losses), norms, events=events)).findings)


def event_at(step: int, kind: str = "loss_spike", severity: Severity = Severity.WARNING, **evidence: float) -> Finding:
    return at_step(step, kind, severity, f"{kind} at step {step}.", evidence=evidence)


def test_a_recorded_spike_ends_where_the_loss_is_back_and_its_peak_is_the_highest() -> None:
    losses = falling(400)
    losses[200:206] *= [2, 3, 5, 3, 2, 1.6]
    (episode,) = episodes_of(losses, event_at(200))
    assert (episode.start, episode.peak, episode.end, episode.recovered) == (200, 202, 205, True)
    assert episode.metric == "loss"


def test_neighbouring_events_are_one_episode_that_says_how_many() -> None:
    losses = falling(400)
    losses[[200, 210, 222]] *= 4
    (episode,) = episodes_of(losses, event_at(200), event_at(210), event_at(222, severity=Severity.CRITICAL))
    assert (episode.count, episode.severity, episode.start) == (3, Severity.CRITICAL, 200)


def test_a_nan_to_the_end_has_not_recovered_and_one_in_between_has() -> None:
    broken, mended = falling(100), falling(100)
    broken[60:] = nan
    mended[60] = nan
    event = event_at(60, "nan_detected", Severity.CRITICAL, loss=nan)
    assert [(episode.recovered, episode.end) for episode in episodes_of(broken, event)] == [(False, 99)]
    assert [(episode.recovered, episode.end) for episode in episodes_of(mended, event)] == [(True, 60)]


def test_an_infinity_that_turned_into_nan_is_one_episode() -> None:
    losses = falling(100)
    losses[60], losses[61:] = inf, nan
    (episode,) = episodes_of(losses, event_at(60, "inf_detected", loss=inf), event_at(61, "nan_detected", loss=nan))
    assert (episode.kind, episode.start) == ("nan_detected", 60)


def test_the_spikes_at_the_onset_of_a_divergence_belong_to_it() -> None:
    losses = np.r_[falling(200), np.linspace(1.6, 9, 200)]
    episodes = episodes_of(losses, event_at(203), event_at(230), event_at(215, "divergence", Severity.CRITICAL))
    assert [finding.kind for finding in episodes] == ["divergence"]
    assert not episodes[0].recovered
    assert episodes[0].spikes == (203,)  # the one that neighbouring events are


def test_a_recorded_divergence_that_passed_has_recovered() -> None:
    losses = falling(400)
    losses[200:240] *= 2
    (episode,) = episodes_of(losses, event_at(212, "divergence", Severity.CRITICAL))
    assert (episode.recovered, episode.severity) == (True, Severity.CRITICAL)
    assert 236 <= episode.end <= 241


@pytest.mark.parametrize(("after", "recovered"), [(2.0, True), (3.99, False)])
def test_a_recorded_plateau_is_over_when_the_loss_fell_after_it(after: float, recovered: bool) -> None:
    losses = np.r_[np.linspace(4.8, 4, 100), np.full(200, 4.0), np.full(100, after)]
    losses = losses * np.exp(np.random.default_rng(0).normal(0, 0.002, 400))
    plateaus = [episode for episode in episodes_of(losses, event_at(250, "plateau")) if episode.kind == "plateau"]
    assert [item.recovered for item in plateaus] == [recovered]


def test_a_jump_of_the_gradient_that_the_loss_did_not_answer_is_only_mentioned_in_hindsight() -> None:
    norms = np.exp(np.random.default_rng(0).normal(0, 0.1, 600))
    norms[400:403] = 200
    calm, loud = falling(600), falling(600)
    loud[400:440] *= 2
    for losses, severity in ((calm, Severity.INFO), (loud, Severity.WARNING)):
        diagnosis = diagnosis_of(run_of(metric_of("loss", losses), metric_of("grad_norm", norms)))
        jumps = [finding for finding in diagnosis.findings if finding.kind == "gradient_explosion"]
        assert [jump.severity for jump in jumps] == [severity]


def test_a_finding_that_became_a_warning_later_begins_where_it_was_found_first() -> None:
    first = event_at(120, "update_ratio_high", Severity.INFO)
    worse = changed(first, step=300, severity=Severity.WARNING, facts=Text("worse", (("since", 120.0),)))
    (episode,) = episodes_of(falling(400), first, worse)
    assert (episode.start, episode.severity, episode.message) == (120, Severity.WARNING, "worse")
