from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import RATE_TOPICS, Severity
from mlflow_stability.vocabulary.run import RunHistory

COUNT, AT = 400, 250


def clipped_up_to(end: int, *, norm: float = 8.0, limit: float = 0.5, again: int = COUNT) -> RunHistory:
    """A loss that explodes from `AT` on, and gradients that were clipped before one step and after another."""
    losses, steps = falling(COUNT), np.arange(COUNT)
    losses[AT:] = 1e4 * np.exp(np.random.default_rng(1).normal(0, 0.3, COUNT - AT))
    norms = norm * np.exp(np.random.default_rng(2).normal(0, 0.2, COUNT))
    norms[AT:] *= 1e4
    kept = steps[(steps < end) | (steps >= again)]
    return run_of(
        metric_of("loss", losses),
        metric_of("grad_norm", norms),
        metric_of("stability/grad_norm_clipped", np.minimum(norms[kept], limit), steps=kept),
        metric_of("learning_rate", np.full(COUNT, 1e-2)),
        metric_of("stability/param_norm", np.full(COUNT // 10, 10.0), steps=np.arange(0, COUNT, 10)),
    )


def test_clipping_that_ended_just_before_is_the_cause() -> None:
    cause = diagnosis_of(clipped_up_to(AT - 2)).cause
    assert cause is not None
    assert (cause.name, cause.certainty, cause.since) == ("clipping_ended", "likely", AT - 2)
    assert f"ended at step {AT - 2}: up to step {AT - 3} gradients were clipped to 0.5" in cause.statement
    assert str(cause.remedies[0]) == f"Clip gradients at 0.5 again, as up to step {AT - 3}."


@pytest.mark.parametrize(
    "run",
    [clipped_up_to(COUNT), clipped_up_to(AT - 2, norm=0.1, limit=200.0), clipped_up_to(20)],
    ids=["to the end", "without an effect", "long before"],
)
def test_clipping_that_goes_on_or_had_no_effect_or_ended_long_before_is_no_cause(run: RunHistory) -> None:
    cause = diagnosis_of(run).cause
    assert cause is None or cause.name != "clipping_ended"


def test_a_first_step_that_is_not_finite_was_broken_from_the_start_whatever_the_learning_rate() -> None:
    losses = np.full(60, math.nan)
    event = at_step(0, "nan_detected", Severity.CRITICAL, "loss is NaN at step 0; no finite value before.")
    metrics = metric_of("loss", losses), metric_of("grad_norm", np.full(60, math.nan))
    diagnosis = diagnosis_of(run_of(*metrics, metric_of("learning_rate", np.full(60, 100.0)), events=[event]))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.since) == ("broken_from_start", 0)
    assert "learning rate: no optimizer step was taken before step 0" in diagnosis.cause.ruled_out
    assert not any(remedy.topic in RATE_TOPICS for remedy in diagnosis.remedies)
