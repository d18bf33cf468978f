from __future__ import annotations

import numpy as np
from diagnosis.histories import run_named

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule
from mlflow_stability.kinds.loss.divergence_rules import FinalRiseRule
from mlflow_stability.vocabulary.result.finding import Finding

Floats = np.ndarray


def ends(values: Floats) -> list[Finding]:
    return FinalRiseRule().find(run_curves(run_named(loss=values)))


def walk(seed: int) -> Floats:
    return 0.05 * np.cumsum(np.random.default_rng(seed).standard_normal(2000))


def wandering(seed: int, kept: float = 0.98) -> Floats:
    fresh = np.random.default_rng(seed).standard_normal(2000) * np.sqrt(1 - kept**2)
    values = np.zeros(2000)
    for step in range(1, 2000):
        values[step] = kept * values[step - 1] + fresh[step]
    return values


def falling_below_zero(seed: int) -> Floats:
    noise = 0.1 * np.random.default_rng(seed).standard_normal(2000)
    return -1 + 3 * np.exp(-3 * np.arange(2000) / 2000) + noise


def test_a_signed_loss_that_walks_did_not_blow_up() -> None:
    assert [seed for seed in range(30) if ends(walk(seed))] == []
    assert [seed for seed in range(30) if ends(wandering(seed))] == []


def test_a_signed_loss_that_blew_up_at_its_end_is_found() -> None:
    for seed in range(10):
        values = falling_below_zero(seed)
        values[-20:] += 2.0
        assert len(ends(values)) == 1, seed


def test_the_objective_of_a_policy_that_grows_certain_does_not_diverge() -> None:
    steps = np.arange(1500)
    flagged = []
    for seed in range(20):
        noise = np.random.default_rng(seed).standard_normal(1500) * (0.04 + 0.5 * np.exp(-steps / 250))
        gained = 0.2 * np.exp(-steps / 60) - 0.28 * np.exp(-(((steps - 200) / 110) ** 2))
        flagged += DivergenceRule().find(run_curves(run_named(loss=0.01 + gained + noise)))
    assert flagged == []
