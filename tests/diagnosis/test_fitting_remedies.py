from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.detectors.nan_detected import NanDetected
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.half_precision import in_half_precision
from mlflow_stability.vocabulary.event import Event, Severity
from mlflow_stability.vocabulary.run_history import RunHistory

AT = 250
FLOAT32 = {"stability.parameter_types": "float32"}
NAN = Event(
    AT,
    "nan_detected",
    Severity.CRITICAL,
    f"loss is NaN at step {AT}.",
    evidence={"loss": math.nan},
    remedies=NanDetected.remedies,
)


def broken(*events: Event, params: dict[str, str] | None = None, scale: float | None = None) -> RunHistory:
    losses = falling(400)
    losses[AT:] = math.nan
    metrics = [metric_of("loss", losses)]
    if scale is not None:
        metrics.append(metric_of("loss_scale", np.full(400, scale)))
    return run_of(*metrics, events=events, params=params)


def born(source: str, *remedies: str, **numbers: float) -> Event:
    message = f"Step {AT}: the first number that is not finite comes from somewhere."
    evidence = {f"from.{source}": 1.0, "operation.div": 1.0, **numbers}
    return Event(AT, "nan_origin", Severity.INFO, message, "head", evidence, remedies)


@pytest.mark.parametrize(
    ("params", "scale", "half"),
    [
        (FLOAT32, None, False),
        ({"stability.parameter_types": "bfloat16"}, None, False),
        ({**FLOAT32, "stability.autocast": "cuda bfloat16"}, None, False),
        ({**FLOAT32, "stability.autocast": "cuda float16"}, None, True),
        ({"stability.parameter_types": "float32, float16"}, None, True),
        (FLOAT32, 1024.0, True),
        ({**FLOAT32, "precision": "16-mixed"}, None, True),
        ({**FLOAT32, "precision": "bf16-mixed"}, None, False),
        ({"fp16": "True"}, None, True),
        ({"fp16": "False"}, None, None),
        ({}, None, None),
    ],
)
def test_half_precision_is_known_from_what_the_run_says(
    params: dict[str, str], scale: float | None, half: bool | None
) -> None:
    history = broken(NAN, params=params, scale=scale)
    assert in_half_precision(history) is half
    said = [each for each in diagnosis_of(history).remedies if "bf16" in each]
    assert (
        said
        == {
            True: ["Train in bf16 instead of fp16."],
            False: [],
            None: ["If it trains in fp16: train in bf16 instead."],
        }[half]
    )


def test_no_episode_says_to_leave_fp16_in_a_run_that_never_used_it() -> None:
    skipped = Event(
        AT, "step_skipped", Severity.WARNING, "Skipped.", remedies=("Train in bf16 instead of fp16.", "Look.")
    )
    found = diagnosis_of(broken(NAN, skipped, params=FLOAT32))
    assert not any("fp16" in remedy for each in found.episodes for remedy in each.remedies)
    assert any("Look." in each.remedies for each in found.episodes)


def test_where_the_operation_is_known_only_what_helps_against_it_is_said() -> None:
    exact = born("forward", "Keep the divisor away from zero.", **{"output.nan": 3.0})
    outputs = Event(
        AT,
        "activation_nonfinite",
        Severity.WARNING,
        "head puts out values that are not finite.",
        remedies=("Look for a softmax over a row that is masked as a whole, and for a logarithm or division by zero.",),
    )
    assert diagnosis_of(broken(NAN, outputs, exact, params=FLOAT32)).remedies == ("Keep the divisor away from zero.",)


def test_an_overflow_is_met_by_smaller_numbers_too() -> None:
    exact = born("forward", "Scale it down.", overflow=1.0, **{"output.inf": 3.0, "input.greatest": 1e30})
    remedies = diagnosis_of(broken(NAN, exact, params=FLOAT32)).remedies
    assert remedies[0] == "Scale it down."
    assert any(each.startswith("Lower the learning rate") for each in remedies)


def test_a_nan_that_nobody_looked_into_is_still_to_be_found() -> None:
    losses = falling(600)
    losses[AT], losses[500:] = math.nan, math.nan
    later = replace(NAN, step=500, message="loss is NaN at step 500.")
    exact = born("forward", "Keep the divisor away from zero.", **{"output.nan": 3.0})
    history = run_of(metric_of("loss", losses), events=[NAN, exact, later], params=FLOAT32)
    first, second = [each for each in diagnosis_of(history).episodes if each.kind == "nan_detected"]
    assert NanDetected.remedies[0] not in first.remedies
    assert NanDetected.remedies[0] in second.remedies
