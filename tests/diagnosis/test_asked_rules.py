"""Who asks for some detectors gets their judgements, and no others from the rules of whole curves."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, run_named

from mlflow_stability.detectors.catalog import named
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.divergence import Divergence
from mlflow_stability.detectors.overfitting import Overfitting
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.run_history import RunHistory

nan = float("nan")


def kinds(history: RunHistory, *detectors: Detector) -> set[str]:
    return {each.kind for each in diagnosis_of(history, detectors=detectors or None).episodes}


def troubled() -> RunHistory:
    """A spike, a divergence, an infinity and a validation loss that rises."""
    losses = falling(600)
    losses[200] *= 8
    losses[400:] *= np.linspace(1, 5, 200)
    losses[300] = np.inf
    return run_named(loss=losses, val_loss=np.interp(np.arange(600), [0, 200, 600], [4.0, 2.0, 6.0]))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("loss_spike", {"loss_spike"}),
        ("divergence", {"divergence"}),
        ("inf_detected", {"inf_detected"}),
        ("gradient_explosion", set()),
        ("nan_detected plateau", set()),
        ("divergence:start", set()),
    ],
)
def test_only_what_was_asked_for_is_judged(asked: str, expected: set[str]) -> None:
    assert kinds(troubled(), *named(asked.split())) == expected


def test_the_usual_detectors_judge_all_of_it() -> None:
    assert kinds(troubled()) >= {"loss_spike", "divergence", "inf_detected"}


def test_no_detector_at_all_judges_nothing() -> None:
    assert diagnosis_of(troubled(), detectors=()).episodes == ()


def test_the_classic_way_of_finding_a_kind_is_not_helped_by_our_own() -> None:
    losses = falling(40, noise=0.001)
    losses[20] *= 1.6
    assert kinds(run_named(loss=losses)) == {"loss_spike"}
    assert kinds(run_named(loss=losses), *named(["loss_spike:classic"])) == set()


def test_a_rise_below_the_threshold_that_was_asked_for_is_no_divergence() -> None:
    history = run_named(loss=np.concatenate([falling(200), np.full(50, 2.9)]))
    assert kinds(history, Divergence()) == {"divergence"}
    assert kinds(history, Divergence(smallest_rise=3.0)) == set()


def test_a_validation_loss_below_the_threshold_that_was_asked_for_is_no_overfitting() -> None:
    steps = np.arange(60)
    history = run_named(loss=4 * np.exp(-steps / 20), val_loss=np.interp(steps, [0, 20, 60], [4.0, 2.0, 2.6]))
    assert kinds(history, Overfitting()) == {"overfitting"}
    assert kinds(history, Overfitting(smallest_rise=1.5)) == set()
