"""Inputs of an unusual size, and inputs that are the same for each row."""

from __future__ import annotations

import pytest
from detectors.series import judged

from mlflow_stability.kinds.first_look.batches import InputScaleFacts, SameBatchFacts, SameInputFacts
from mlflow_stability.vocabulary.result import Finding, Severity


def scales(low: float, high: float, rms: float) -> list[Finding]:
    series = {"input_low@stem": [low, low], "input_high@stem": [high, high], "input_rms@stem": [rms, rms]}
    return judged("input_scale", **series)


def test_bytes_are_found_once() -> None:
    (finding,) = scales(0.0, 255.0, 138.0)
    assert (finding.severity, finding.place) == (Severity.WARNING, "stem")
    assert finding.facts == InputScaleFacts("stem", 0.0, 255.0, 138.0)
    assert finding.message == (
        "The inputs of module stem are 0 to 255 at step 0 (RMS 138): bytes that were not scaled."
    )


def test_large_and_tiny_inputs_are_found() -> None:
    assert [finding.message for finding in scales(-3000.0, 9000.0, 1500.0)] == [
        "The inputs of module stem are -3e+03 to 9e+03 at step 0 (RMS 1.5e+03): usual is an RMS near 1."
    ]
    assert [finding.step for finding in scales(0.0, 0.0039, 0.002)] == [1]


def test_inputs_that_are_tiny_only_at_the_first_measurement_are_not_reported() -> None:
    series = {"input_low@stem": [-0.01, -2.0], "input_high@stem": [0.01, 2.0], "input_rms@stem": [0.005, 0.7]}
    assert judged("input_scale", **series) == []


def test_inputs_that_grow_are_made_by_the_model_and_not_reported() -> None:
    series = {"input_low@stem": [-3.0, -300.0], "input_high@stem": [3.0, 280.0], "input_rms@stem": [1.1, 239.0]}
    assert judged("input_scale", **series) == []


@pytest.mark.parametrize(
    ("low", "high", "rms"),
    [(-3.0, 4.0, 1.0), (0.0, 1.0, 0.5), (0.0, 1.0, 0.01), (0.0, 60.0, 8.0), (0.0, 0.0, 0.0)],
    ids=["standardised", "pixels", "one-hot", "counts", "zeros"],
)
def test_usual_inputs_are_not_reported(low: float, high: float, rms: float) -> None:
    assert scales(low, high, rms) == []


def test_the_same_input_for_each_row_is_found_at_the_second_measurement() -> None:
    (finding,) = judged("same_input", **{"input_spread@rnn": [0.0, 0.0, 0.0]})
    assert (finding.severity, finding.step, finding.facts) == (Severity.WARNING, 1, SameInputFacts("rnn", 2))


@pytest.mark.parametrize("spreads", [[0.0, 0.3, 0.0, 0.0], [1.0, 0.0, 0.0]])
def test_rows_that_differed_once_are_not_reported(spreads: list[float]) -> None:
    assert judged("same_input", **{"input_spread@rnn": spreads}) == []


def test_the_same_batch_in_eight_of_the_first_steps_is_information() -> None:
    (finding,) = judged("same_batch", batch_repeated=[1.0] * 12)
    assert (finding.severity, finding.step, finding.facts) == (Severity.INFO, 7, SameBatchFacts(8))
    assert finding.message == "Inputs and targets are those of the step before, in 8 steps in a row up to step 7."
    assert judged("same_batch", batch_repeated=[1.0] * 4 + [0.0] + [1.0] * 12) == []
