from __future__ import annotations

import math
import re

import numpy as np
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity


def test_a_usual_gradient_norm_is_one_number_in_a_report() -> None:
    """The norms fall all the while, so that every way of taking their middle gives another number."""
    losses, norms = falling(400), np.geomspace(8.0, 0.5, 400)
    losses[300], norms[300] = 400.0, 90.0
    events = [at_step(300, "loss_spike", Severity.CRITICAL, "loss is 400 at step 300.")]
    cause = diagnosis_of(run_of(metric_of("loss", losses), metric_of("grad_norm", norms), events=events)).cause
    assert cause is not None
    numbers = [
        number for item in (*cause.evidence, *cause.ruled_out) for number in re.findall(r"baseline ([\d.e+-]+)", item)
    ]
    assert len(numbers) >= 2
    assert len(set(numbers)) == 1


def test_a_median_of_another_stretch_is_not_called_usual() -> None:
    losses, norms = falling(400), np.full(400, 0.5)
    losses[300:], norms[290:299], norms[299], norms[300:] = math.nan, 0.1, 4.0, math.nan
    event = at_step(300, "nan_detected", Severity.CRITICAL, "loss is NaN.", evidence={"loss": math.nan})
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), metric_of("grad_norm", norms), events=[event]))
    assert diagnosis.cause is not None
    (batch,) = [text for text in diagnosis.cause.ruled_out if "bad batch" in text]
    assert batch.endswith("median of its last 16 values: 0.1")
