from __future__ import annotations

from dataclasses import replace

import numpy as np
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.findings.replay import BETTER_SEEN_WHOLE, replayed
from mlflow_stability.kinds.catalog import default_detectors
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Reset, RunHistory


def events_of(history: RunHistory) -> list[Finding]:
    return replayed(history, run_curves(history), default_detectors())


def spiked(count: int = 600, at: int = 400) -> np.ndarray:
    losses = falling(count)
    losses[at] *= 4
    return losses


def test_the_history_of_a_run_gives_the_events_that_training_would_have_given() -> None:
    losses, norms = spiked(), np.exp(np.random.default_rng(1).normal(0, 0.1, 600))
    norms[300] = 50
    readings = [
        StepReading(step, (Signal("loss"), Signal("grad_norm")), (float(losses[step]), float(norms[step])))
        for step in range(600)
    ]
    detectors = [detector for detector in default_detectors() if detector.kind not in BETTER_SEEN_WHOLE]
    expected = replay(readings, detectors)
    assert expected
    assert repr(events_of(run_of(metric_of("loss", losses), metric_of("grad_norm", norms)))) == repr(expected)


def test_nothing_is_known_after_a_restart_of_what_came_before() -> None:
    first, again = falling(300, noise=0.01), 40 * falling(300, noise=0.01)
    twice = metric_of("loss", np.r_[first, again], steps=[*range(300)] * 2, attempts=[0] * 300 + [1] * 300)
    on = metric_of("loss", np.r_[first, again], attempts=[0] * 300 + [1] * 300)
    assert events_of(run_of(twice)) == []
    assert next(event.step for event in events_of(run_of(on))) >= 300


def test_a_step_that_was_logged_twice_is_shown_twice() -> None:
    losses = np.repeat(falling(300), 2)
    losses[401] *= 5
    history = run_of(metric_of("loss", losses, steps=np.repeat(np.arange(300), 2)))
    assert [event.step for event in events_of(history)] == [200]


def test_other_detectors_can_be_asked() -> None:
    history = run_of(metric_of("loss", spiked()))
    assert replayed(history, run_curves(history), ()) == []
    readings = [Reset(0, 0, "start"), *(StepReading(step, (Signal("loss"),), (1.0,)) for step in range(3))]
    assert replay(readings) == []


def test_lost_noise_is_looked_for_only_where_each_point_is_known_to_be_a_step() -> None:
    losses = falling(400, noise=0.05)
    losses[300:] = losses[299] * np.exp(-0.002 * np.arange(100))
    history = run_of(metric_of("loss", losses))
    assert "repeated_data" in {event.kind for event in events_of(replace(history, format="recorded"))}
    assert "repeated_data" not in {event.kind for event in events_of(history)}
