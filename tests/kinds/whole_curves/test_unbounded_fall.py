"""Losses without a lower bound: they fall below zero, and do not slow down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of
from numpy.typing import NDArray

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.loss.divergence_rules import UnboundedFallRule
from mlflow_stability.vocabulary.result import Action
from mlflow_stability.vocabulary.run import RunHistory

STEPS = np.arange(400.0)


def run(loss: NDArray[np.float64], seed: int = 0, noise: float = 0.05) -> RunHistory:
    random = np.random.default_rng(seed)
    return run_of(metric_of("loss", loss * np.exp(random.normal(0, noise, len(loss)))))


NEGATED: dict[str, Callable[[], NDArray[np.float64]]] = {
    "cross entropy": lambda: -1.6 - 3e-5 * STEPS**3,
    "of a linear model": lambda: -1.6 - 0.5 * STEPS,
    "squared error": lambda: -6 * np.exp(STEPS / 25),
    "logits into nll_loss": lambda: 0.1 - 0.02 * STEPS**2,
}


@pytest.mark.parametrize("name", NEGATED)
def test_a_negated_loss_has_diverged_and_its_sign_is_to_be_checked(name: str) -> None:
    diagnosis = diagnosis_of(run(NEGATED[name]()))
    assert diagnosis.outcome == "diverged"
    assert diagnosis.remedies[0].action is Action.CHECK_SIGN_OF_LOSS
    assert diagnosis.cause is not None
    assert "no lower bound" in diagnosis.cause.statement
    assert "without slowing down" in diagnosis.verdict


def test_a_loss_far_below_zero_has_no_lower_bound_even_if_it_rises_again() -> None:
    def falls_to(last: float) -> RunHistory:
        turn = 300
        return run(np.r_[-np.geomspace(1, last, turn), -np.geomspace(last, last / 10, len(STEPS) - turn)])

    findings = UnboundedFallRule().find(run_curves(falls_to(1e9)))
    assert [finding.kind for finding in findings] == ["divergence"]
    assert UnboundedFallRule().find(run_curves(falls_to(1e3))) == []


BOUNDED: dict[str, Callable[[], NDArray[np.float64]]] = {
    "a likelihood of 3,000 dimensions": lambda: 4300 - 11000 * (1 - np.exp(-STEPS / 80)),
    "a likelihood whose width shrinks": lambda: 1.4 - 0.02 * STEPS,
    "a cosine similarity": lambda: -1 + np.exp(-STEPS / 50),
    "an energy": lambda: -100 * STEPS / (STEPS + 60) - 1,
    "a fall that has ended": lambda: np.where(STEPS < 300, -1 - STEPS, -301.0),
}


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_below_zero_that_slows_down_or_falls_a_little_is_left_alone(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    values = BOUNDED[name]()
    noisy = values + random.normal(0, 0.02 * float(np.ptp(values)), len(values))
    assert UnboundedFallRule().find(run_curves(run_of(metric_of("loss", noisy)))) == []


@pytest.mark.parametrize(("times", "is_found"), [(29.0, True), (31.0, False)])
def test_it_must_be_many_times_as_far_from_zero_as_at_the_start(times: float, is_found: bool) -> None:
    loss = -2 - 58 * np.maximum(0, STEPS - 20) / 354.5  # the median of the last eighth is -60
    curves = run_curves(run_of(metric_of("loss", loss)))
    assert bool(UnboundedFallRule(times=times).find(curves)) is is_found


def test_sixty_four_points_are_needed() -> None:
    findings = [
        UnboundedFallRule().find(run_curves(run_of(metric_of("loss", -(np.arange(1.0, 1 + count) ** 2)))))
        for count in (63, 64)
    ]
    assert [len(findings) for findings in findings] == [0, 1]


def test_of_few_epochs_a_fall_that_speeds_up_has_no_lower_bound() -> None:
    epochs = np.arange(10.0)
    assert UnboundedFallRule().find(run_curves(run(2 - 4.2 * epochs**2.45, noise=0.0)))
    assert not UnboundedFallRule().find(run_curves(run(2 - 90 * epochs, noise=0.0)))  # one that keeps its pace
    assert not UnboundedFallRule().find(run_curves(run(2 - 0.2 * epochs**2.45, noise=0.0)))  # one that is not far
    assert not UnboundedFallRule().find(run_curves(run(300 - 4.2 * epochs**2.45, noise=0.0)))
