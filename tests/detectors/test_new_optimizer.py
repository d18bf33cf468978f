"""Another optimizer that takes over with another objective begins a phase; its first losses are no rise of the old."""

from __future__ import annotations

import numpy as np
import pytest
from detectors.series import Floats, decaying, judged, noise

from mlflow_stability.detectors.learning_rate_restart import OptimizersOfLosses
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.result import Finding

STEPS, SECOND = 600, 300
FIRST_PHASE = decaying(SECOND, 0.02, 2.3, 40.0)


def found_in(losses: Floats, *, optimizers: int) -> list[Finding]:
    """What is found in losses that are as noisy as usual, of one optimizer, or of another one from step 300 on."""
    place = "learning_rate" if optimizers == 1 else "learning_rate@optimizer_1"
    rates: dict[str, list[float | None]] = {"learning_rate": [1e-3] * SECOND + [None] * SECOND}
    second = [None] * SECOND + [1e-3] * SECOND
    rates[place] = [1e-3] * STEPS if optimizers == 1 else second
    return judged("divergence loss_spike", loss=losses * np.exp(noise(0, STEPS, 0.1)), **rates)


def test_a_second_optimizer_with_another_objective_has_a_level_of_its_own() -> None:
    losses = np.r_[FIRST_PHASE, decaying(STEPS - SECOND, 0.4, 0.8, 60.0)]
    assert found_in(losses, optimizers=2) == []
    assert "divergence" in {finding.kind for finding in found_in(losses, optimizers=1)}


def test_a_second_phase_that_diverges_is_found() -> None:
    losses = np.r_[FIRST_PHASE, decaying(150, 0.4, 0.8, 60.0), np.full(150, 4.0)]
    (finding,) = (finding for finding in found_in(losses, optimizers=2) if finding.kind == "divergence")
    assert 450 < finding.step < 470


@pytest.mark.parametrize("normal", [1, 3])
def test_a_second_optimizer_that_makes_the_loss_of_the_first_rise_is_found(normal: int) -> None:
    losses = np.r_[FIRST_PHASE, FIRST_PHASE[-normal:], np.full(STEPS - SECOND - normal, 0.8)]
    assert "divergence" in {finding.kind for finding in found_in(losses, optimizers=2)}


def test_a_loss_that_had_diverged_before_stays_so_under_a_second_optimizer() -> None:
    losses = np.r_[FIRST_PHASE[:-40], np.full(STEPS - SECOND + 40, 0.8)]
    findings = [finding for finding in found_in(losses, optimizers=2) if finding.kind == "divergence"]
    assert [point.step < SECOND for point in findings] == [True]


def test_an_optimizer_takes_over_where_none_steps_that_did_before() -> None:
    def signals(*rates: str, place: str = "") -> list[Signal]:
        return [*(Signal("learning_rate", rate) for rate in rates), Signal("loss", place)]

    optimizers_of_losses = OptimizersOfLosses()
    assert optimizers_of_losses.losses_with_new_optimizers(signals("")) == []
    assert optimizers_of_losses.losses_with_new_optimizers(signals("", "optimizer_1")) == []  # it joins
    assert optimizers_of_losses.losses_with_new_optimizers(signals("optimizer_2", place="track_1")) == []
    assert optimizers_of_losses.losses_with_new_optimizers(signals("optimizer_3", "optimizer_3.group_1")) == [2]
    assert optimizers_of_losses.losses_with_new_optimizers(signals("optimizer_3")) == []
    assert optimizers_of_losses.losses_with_new_optimizers(signals("optimizer_1")) == []  # it is known
    assert optimizers_of_losses.losses_with_new_optimizers([Signal("loss")]) == []
