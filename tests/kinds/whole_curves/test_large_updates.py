"""Updates that stay large to the end while the loss hardly falls."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of
from numpy.typing import NDArray

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.optimizer.update_size_curve import LargeUpdatesFacts, LargeUpdatesRule
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

STEPS = np.arange(1, 601)


def recorded(start: float, end: float, ratios: float | NDArray[np.float64], rate: float = 0.06) -> RunHistory:
    """A run whose loss falls exponentially, over 40 steps, towards its end."""
    noise = np.exp(np.random.default_rng(0).normal(0, 0.03, len(STEPS)))
    values = {
        "loss": (end + (start - end) * np.exp(-STEPS / 40)) * noise,
        "update_ratio": np.broadcast_to(ratios, STEPS.shape),
        "learning_rate": np.full(STEPS.shape, rate),
    }
    metrics = (
        metric_of(name, series, steps=list(STEPS), meaning=Meaning(name, is_known=True))
        for name, series in values.items()
    )
    return run_of(*metrics)


def found_in(history: RunHistory) -> list[Finding]:
    return LargeUpdatesRule().find(run_curves(history))


def test_updates_that_replace_the_weights_and_a_flat_loss_are_a_learning_rate_that_is_too_high() -> None:
    diagnosis = diagnosis_of(recorded(4.5, 2.9, 0.029))
    (episode,) = [finding for finding in diagnosis.findings if finding.severity > Severity.INFO]
    assert (episode.kind, episode.start, episode.end) == ("update_ratio_high", 121, 600)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_too_high"
    assert str(diagnosis.remedies[0]).startswith("Lower the learning rate from 0.06 to about 0.006")


@pytest.mark.parametrize(
    "history",
    [
        recorded(4.5, 2.9, 0.015),
        recorded(4.5, 1.2, 0.029),
        recorded(4.5, 2.9, np.linspace(0.04, 0.001, len(STEPS))),
        recorded(2.9, 4.5, 0.029),
    ],
    ids=["smaller updates", "a loss that fell to a third", "updates that end small", "a loss that rose"],
)
def test_other_trainings_are_not_reported(history: RunHistory) -> None:
    assert found_in(history) == []


def test_a_loss_that_still_falls_is_not_reported() -> None:
    history = recorded(4.5, 2.9, 0.029)
    falling = history.of("loss")[0].series.values * np.linspace(1.1, 0.9, len(STEPS))
    losses = metric_of("loss", falling, steps=list(STEPS), meaning=Meaning("loss", is_known=True))
    assert found_in(run_of(losses, *history.of("update_ratio"))) == []


@pytest.mark.parametrize(
    ("clipped", "move", "ratio", "severity"),
    [
        (0.25, 0.25, 0.029, Severity.INFO),
        (None, 0.9, 0.034, Severity.INFO),
        (None, 0.9, 0.2, Severity.WARNING),
        (0.25, 2.5, 0.029, Severity.WARNING),
        (None, 0.09, 0.029, Severity.WARNING),
    ],
    ids=["clipped", "never clipped", "a fifth of the weights", "with momentum", "other steps than those of SGD"],
)
def test_updates_of_plain_sgd_are_information_unless_they_replace_the_weights(
    clipped: float | None, move: float, ratio: float, severity: Severity
) -> None:
    history = recorded(4.5, 2.9, ratio, rate=10.0)
    values = {"grad_norm": 0.9, "update_norm": 10.0 * move} | ({"grad_norm_clipped": clipped} if clipped else {})
    more = (
        metric_of(name, np.full(STEPS.shape, value), steps=list(STEPS), meaning=Meaning(name, is_known=True))
        for name, value in values.items()
    )
    (finding,) = found_in(run_of(*history.metrics, *more))
    assert finding.severity is severity


def test_a_loss_that_rose_meanwhile_did_not_fall_by_a_negative_share() -> None:
    assert "while loss hardly falls; it rose by 268.6% in that time" in LargeUpdatesFacts(
        "loss", 0.11, 0.02, -2.686
    ).sentence(59)
