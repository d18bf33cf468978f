"""A finding about the inside of a training is a warning only where the training does badly."""

from __future__ import annotations

import numpy as np
import pytest
from detectors.series import judged

from mlflow_stability.vocabulary.result import Severity

STEPS = 300
FALLS = np.linspace(7.5, 0.25, STEPS)
INSIDE = {
    "dead_units": {"activation_dead@a": np.full(STEPS, 0.95)},
    "saturated_activation": {"activation_saturation@a": np.full(STEPS, 0.8)},
    "attention_logit_growth": {"attention_max_logit@a.head_0": np.r_[np.full(50, 5.0), np.full(STEPS - 50, 200.0)]},
    "gradient_imbalance": {
        f"grad_norm@{name}": np.full(STEPS, size) for name, size in zip("abc", (1e-6, 1.0, 1.0), strict=True)
    },
    "update_ratio_high": {"learning_rate": np.full(STEPS, 1e-3), "update_ratio": np.full(STEPS, 0.3)},
    "update_ratio_low": {"learning_rate": np.full(STEPS, 1e-3), "update_ratio": np.full(STEPS, 1e-9)},
}


@pytest.mark.parametrize("kind", INSIDE)
def test_it_is_information_while_the_loss_falls(kind: str) -> None:
    findings = judged(kind, loss=FALLS, **INSIDE[kind])
    assert [finding.severity for finding in findings] == [Severity.INFO]


@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.parametrize("losses", [np.full(STEPS, 2.3), np.linspace(2.3, 2.2, STEPS)], ids=["flat", "hardly falling"])
def test_it_is_a_warning_where_the_loss_does_not_fall(kind: str, losses: np.ndarray) -> None:
    assert judged(kind, loss=losses, **INSIDE[kind])[-1].severity is Severity.WARNING


@pytest.mark.parametrize("kind", INSIDE)
def test_it_becomes_a_warning_where_the_loss_rises_again(kind: str) -> None:
    losses = np.r_[np.linspace(7.5, 1.0, 150), np.full(150, 3.0)]
    first, worse = judged(kind, loss=losses, **INSIDE[kind])
    assert (first.severity, worse.severity) == (Severity.INFO, Severity.WARNING)
    assert worse.step > 150
    assert worse.metrics["since"] == first.step
    assert worse.message.startswith(first.message)
    assert "times its lowest level" in worse.message


@pytest.mark.parametrize(("back", "severities"), [(-80.0, [Severity.INFO]), (-20.0, [Severity.INFO, Severity.WARNING])])
def test_a_loss_below_zero_has_risen_where_half_of_its_fall_is_lost(back: float, severities: list[Severity]) -> None:
    losses = np.r_[np.linspace(5.0, -100.0, 150), np.full(150, back)]
    findings = judged("dead_units", loss=losses, **INSIDE["dead_units"])
    assert [finding.severity for finding in findings] == severities
    assert ("up from its lowest level of -8" in findings[-1].message) is (back > -50)


@pytest.mark.parametrize("kind", INSIDE)
def test_noise_of_a_falling_loss_is_no_rise(kind: str) -> None:
    losses = FALLS * np.exp(np.random.default_rng(0).normal(0, 0.3, STEPS))
    assert [finding.severity for finding in judged(kind, loss=losses, **INSIDE[kind])] == [Severity.INFO]


@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.parametrize(("rise", "severities"), [(1.0, {Severity.INFO}), (2.0, {Severity.INFO, Severity.WARNING})])
@pytest.mark.parametrize("seed", range(3))
def test_noise_of_60_percent_of_the_loss_is_no_rise_but_twice_the_level_is(
    kind: str, rise: float, severities: set[Severity], seed: int
) -> None:
    level = np.r_[np.linspace(7.5, 2.0, 50), np.full(150, 2.0), np.full(STEPS - 200, 2.0 * rise)]
    losses = level * np.random.default_rng(seed).lognormal(0, 0.55, STEPS)
    assert {finding.severity for finding in judged(kind, loss=losses, **INSIDE[kind])} == severities


@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.parametrize(("rise", "severities"), [(0.0, {Severity.INFO}), (5.0, {Severity.INFO, Severity.WARNING})])
def test_noise_of_a_loss_that_is_negative_at_times_is_as_large_at_its_lowest_level(
    kind: str, rise: float, severities: set[Severity]
) -> None:
    level = np.r_[np.linspace(6.0, 3.0, 50), np.full(150, 3.0), np.full(STEPS - 200, 3.0 + rise)]
    losses = level + np.random.default_rng(5).normal(0, 2.5, STEPS)
    assert {finding.severity for finding in judged(kind, loss=losses, **INSIDE[kind])} == severities


@pytest.mark.parametrize("kind", INSIDE)
def test_a_rise_near_zero_is_no_trouble(kind: str) -> None:
    losses = np.r_[np.geomspace(7.5, 0.2, 150), np.full(150, 0.5)]
    assert [finding.severity for finding in judged(kind, loss=losses, **INSIDE[kind])] == [Severity.INFO]


@pytest.mark.parametrize("kind", INSIDE)
def test_a_short_rise_of_a_loss_that_fell_within_few_steps_is_no_trouble(kind: str) -> None:
    losses = np.r_[np.geomspace(2.4, 0.02, 10), np.geomspace(0.02, 1e-4, 140), np.full(4, 0.3), np.full(146, 1e-4)]
    assert [finding.severity for finding in judged(kind, loss=losses, **INSIDE[kind])] == [Severity.INFO]


@pytest.mark.parametrize("kind", [*INSIDE, "gradient_explosion"])
def test_single_hard_examples_of_a_loss_that_is_nearly_always_zero_are_no_trouble(kind: str) -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(STEPS) < 0.1
    losses = np.r_[np.geomspace(2.4, 0.02, 10), np.where(hard, 2.5, 1e-9)[10:]]
    series = INSIDE.get(kind, {"grad_norm": np.where(hard, 10.0, 1e-7) * np.exp(rng.normal(0, 1.0, STEPS))})
    assert {finding.severity for finding in judged(kind, loss=losses, **series)} <= {Severity.INFO}
