"""A loss whose level does not measure progress, and that grows to its end, is neither healthy nor diverged."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.loss_level import LossLevel, NoLevel
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

NOISE = np.exp(np.random.default_rng(0).normal(0.0, 0.1, 400))


def policy(first: float, last: float, reason: NoLevel | None = NoLevel.POLICY) -> RunHistory:
    level = metric_of(
        "loss_without_level",
        [LossLevel(reason).code],
        steps=[3],
        meaning=Meaning("loss_without_level", is_known=True),
    )
    norm = metric_of("grad_norm", 0.5 * NOISE)
    return run_of(metric_of("loss", np.geomspace(first, last, 400) * NOISE), norm, level)


def test_a_policy_whose_loss_grew_to_the_end_cannot_be_judged() -> None:
    diagnosis = diagnosis_of(policy(100.0, 20_000.0))
    assert diagnosis.outcome == "cannot_tell"
    assert diagnosis.verdict.startswith("Cannot tell: loss grew from 1")
    assert "its level was not judged, because it is the objective of a policy" in diagnosis.verdict
    assert diagnosis_of(policy(100.0, 20_000.0, None)).outcome == "diverged"


@pytest.mark.parametrize(("first", "last"), [(100.0, 500.0), (0.001, 1.0), (20_000.0, 100.0)])
def test_other_losses_of_policies_are_healthy(first: float, last: float) -> None:
    assert diagnosis_of(policy(first, last)).outcome == "healthy"
