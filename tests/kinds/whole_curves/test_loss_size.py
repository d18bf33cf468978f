"""Losses whose level does not measure progress: only a growth by a factor of a thousand counts."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of
from numpy.typing import NDArray

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.loss.divergence_rules import LossSizeRule
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL, LossLevel, NoLevel
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

STEPS = np.arange(400)


def noise(seed: int, width: float) -> NDArray[np.float64]:
    """Factors around 1."""
    return np.exp(np.random.default_rng(seed).normal(0, width, len(STEPS)))


def recorded(loss: NDArray[np.float64], level: LossLevel, norms: bool = True) -> RunHistory:
    """A recorded run with a loss, and what is known about its level from step 3 on."""
    fact = metric_of(LOSS_LEVEL, [level.code], steps=[3], meaning=Meaning(LOSS_LEVEL, is_known=True))
    norm = metric_of("grad_norm", np.ones(len(loss)), meaning=Meaning("grad_norm", is_known=True))
    return run_of(metric_of("loss", loss, meaning=Meaning("loss", is_known=True)), fact, *([norm] if norms else []))


@pytest.mark.parametrize(("last", "kinds"), [(900.0, []), (1500.0, ["divergence"]), (-4.7e10, ["divergence"])], ids=str)
def test_a_loss_without_a_level_has_diverged_from_a_thousand_times_its_first_size_on(
    last: float, kinds: list[str]
) -> None:
    loss = np.where(STEPS < 300, 1.0, last) * noise(1, 0.05)
    findings = LossSizeRule().find(run_curves(recorded(loss, LossLevel(NoLevel.BOOTSTRAPPED))))
    assert [finding.kind for finding in findings] == kinds


def test_a_tiny_loss_without_a_level_may_grow_a_thousandfold() -> None:
    loss = np.where(STEPS < 300, 1e-6, 1e-2) * noise(1, 0.05)
    assert LossSizeRule().find(run_curves(recorded(loss, LossLevel(NoLevel.BOOTSTRAPPED)))) == []


@pytest.mark.parametrize(
    ("level", "outcome"),
    [
        (LossLevel(NoLevel.BOOTSTRAPPED), "healthy"),
        (LossLevel(NoLevel.POLICY, by_user=True), "healthy"),
        (LossLevel(None), "diverged"),
        (LossLevel(None, by_user=True), "diverged"),
    ],
    ids=str,
)
def test_a_loss_that_rises_fivefold_has_diverged_only_where_it_has_a_level(level: LossLevel, outcome: str) -> None:
    loss = np.where(STEPS < 200, 1.0, 5.0) * noise(2, 0.05)
    diagnosis = diagnosis_of(recorded(loss, level))
    assert diagnosis.outcome == outcome
    assert ("The level of loss was not judged: " in diagnosis.verdict) is (outcome == "healthy")
    assert ("rose" in diagnosis.verdict) is (outcome == "diverged")


def test_a_loss_without_a_level_alone_cannot_tell_that_all_is_well() -> None:
    loss = noise(2, 0.05)
    assert diagnosis_of(recorded(loss, LossLevel(NoLevel.POLICY), norms=False)).outcome == "cannot_tell"


def test_a_signed_loss_is_not_judged_by_its_level_and_a_density_that_crosses_zero_is() -> None:
    signed = np.sin(STEPS / 20) * noise(3, 0.1)
    crossing = noise(3, 0.05) - STEPS / 200
    for loss, has_level in ((signed, False), (crossing, True)):
        (curve,) = run_curves(run_of(metric_of("loss", loss))).losses
        assert curve.has_level is has_level


def test_one_small_loss_at_the_end_leaves_a_divergence_what_it_is() -> None:
    loss = np.where(STEPS < 300, 1.0, 5000.0) * noise(3, 0.05)
    loss[-1] = 0.0
    (finding,) = LossSizeRule().find(run_curves(recorded(loss, LossLevel(NoLevel.BOOTSTRAPPED))))
    assert finding.start == 300
