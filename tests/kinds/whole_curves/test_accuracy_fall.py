"""Overfitting that accuracies alone show."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.kinds.progress.overfitting_curves import AccuracyFallRule
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

EXAMPLES = 1000
"""Of one validation."""


def run(count: int, ends: float, seed: int = 0, percent: bool = False, **more: np.ndarray) -> RunHistory:
    """Training accuracy rises to 100 %, validation accuracy to 80 % at a third, and to this at the end."""
    dice = np.random.default_rng(seed)
    t = np.arange(count) / (count - 1)
    true = np.where(t < 1 / 3, 0.5 + 0.9 * t, 0.8 + (ends - 0.8) * (t - 1 / 3) * 1.5)
    values = {
        "train_loss": 2 * np.exp(-3 * t),
        "train_acc": np.minimum(1.0, 0.5 + 0.7 * t),
        "val_acc": dice.binomial(EXAMPLES, true) / EXAMPLES,
        **more,
    }
    if percent:
        values |= {name: 100 * values[name] for name in ("train_acc", "val_acc")}
    meanings = metric_meanings(values)
    return run_of(*(metric_of(name, item, meaning=meanings[name]) for name, item in values.items()))


def findings_of(history: RunHistory) -> list[Finding]:
    return AccuracyFallRule().find(run_curves(history))


@pytest.mark.parametrize("count", [12, 30, 100])
@pytest.mark.parametrize("percent", [False, True])
def test_a_validation_accuracy_that_falls_by_ten_points_is_overfitting(count: int, percent: bool) -> None:
    (episode,) = findings_of(run(count, 0.7, percent=percent))
    assert (episode.kind, episode.metric) == ("overfitting", "val_acc")
    assert episode.metrics["best"] == pytest.approx(0.8, abs=0.04)
    assert episode.metrics["last"] == pytest.approx(0.71, abs=0.03)
    assert episode.message.startswith("val_acc fell from ")


def test_a_validation_accuracy_that_levels_off_is_no_fall() -> None:
    flagged = sum(bool(findings_of(run(count, 0.8, seed))) for count in (8, 12, 30, 100) for seed in range(100))
    assert flagged <= 4  # of 400


def test_where_a_validation_loss_is_logged_it_decides() -> None:
    assert findings_of(run(30, 0.7, val_loss=np.linspace(2, 1, 30))) == []


def test_both_accuracies_that_fall_are_no_overfitting() -> None:
    assert findings_of(run(30, 0.7, train_acc=np.linspace(0.9, 0.6, 30))) == []
