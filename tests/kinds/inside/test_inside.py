from __future__ import annotations

from collections.abc import Sequence

import pytest
from detectors.series import judged, readings

from mlflow_stability.kinds.inside.sparse_codes import SdrCollapse
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.result import Finding

MEASUREMENTS = 12


def codes(unique: Sequence[float], rows: float = 500, inputs: float | None = None) -> dict[str, list[float]]:
    """Codes of an encoder, with as many numbers as there are shares of unique patterns."""
    count = len(unique)
    series = {"sdr_rows@encoder": [rows] * count, "sdr_width@encoder": [512.0] * count}
    series["sdr_active_bits@encoder"] = [156.2] * count
    if inputs is not None:
        series["sdr_input_ratio@encoder"] = [inputs] * count
    return series | {"sdr_unique_ratio@encoder": list(unique)}


def bits(usage: float, spread: float, rows: float = 500, active: float = 20) -> dict[str, list[float]]:
    return {
        "sdr_rows@encoder": [rows] * MEASUREMENTS,
        "sdr_width@encoder": [512.0] * MEASUREMENTS,
        "sdr_active_bits@encoder": [active] * MEASUREMENTS,
        "sdr_bit_usage@encoder": [usage] * MEASUREMENTS,
        "sdr_duty_std@encoder": [spread * active / 512] * MEASUREMENTS,
    }


def after(first: float, then: float, at: int = 5) -> list[float]:
    return [first] * at + [then] * (MEASUREMENTS - at)


@pytest.mark.parametrize(
    ("kind", "quantity"), [("dead_units", "activation_dead"), ("saturated_activation", "activation_saturation")]
)
def test_most_of_a_layer_in_three_consecutive_measurements_is_reported_once(kind: str, quantity: str) -> None:
    (event,) = judged(kind, **{f"{quantity}@a": after(0.1, 0.8), f"{quantity}@b": [0.4] * MEASUREMENTS})
    assert (event.step, event.place, event.kind) == (7, "a", kind)
    assert "80.0%" in event.message
    assert judged(kind, **{f"{quantity}@a": [0.8, 0.8, 0.1] * 4}) == []


def test_layers_that_die_together_are_one_finding() -> None:
    (event,) = judged("dead_units", **{f"activation_dead@{name}": after(0.1, 0.9) for name in "abc"})
    assert event.place == "a"


def test_nan_outputs_are_reported_once_at_the_first_module_that_has_them() -> None:
    (event,) = judged(
        "activation_nonfinite",
        **{f"activation_nonfinite@{name}": after(0, 3) for name in ("attention", "projection")},
    )
    assert (event.step, event.place) == (5, "attention")
    assert "all finite at step 4" in event.message


def test_a_module_that_masks_with_infinity_from_the_start_is_not_reported() -> None:
    assert judged("activation_nonfinite", **{"activation_nonfinite@mask": [9] * MEASUREMENTS}) == []


def collapse(**series: Sequence[float]) -> list[Finding]:
    return judged("sdr_collapse", **series)


def test_few_unique_patterns_are_a_collapse_with_its_numbers() -> None:
    (event,) = collapse(**codes(after(0.9, 0.183)))
    assert (event.step, event.place) == (6, "encoder")
    assert "18.3% unique codes" in event.message
    assert "Active bits: 156.2/512 (30.5%)" in event.message


def test_equal_inputs_may_have_equal_codes() -> None:
    assert collapse(**codes([0.15] * MEASUREMENTS, inputs=0.16)) == []
    (event,) = collapse(**codes([0.15] * MEASUREMENTS, inputs=0.6))
    assert "25.0% unique codes" in event.message


@pytest.mark.parametrize(("rows", "inputs"), [(31, None), (500, 0.05)])
def test_few_different_inputs_are_not_judged(rows: float, inputs: float | None) -> None:
    assert collapse(**codes([0.1] * MEASUREMENTS, rows, inputs)) == []


def test_a_single_odd_batch_is_no_collapse() -> None:
    assert collapse(**codes([0.9] * 5 + [0.1] + [0.9] * 6)) == []


def test_the_threshold_of_a_collapse_is_the_users() -> None:
    assert replay(readings(codes([0.4] * MEASUREMENTS)), [SdrCollapse(unique=0.5)]) != []
    assert replay(readings(codes([0.4] * MEASUREMENTS)), [SdrCollapse()]) == []


def test_falling_diversity_is_reported_before_it_collapses() -> None:
    falling = [0.95, 0.9, 0.8, 0.7, 0.55, 0.5, 0.45, 0.4]
    (event,) = judged("sdr_low_diversity", **codes(falling))
    assert event.step == 5
    assert "down from 95.0%" in event.message
    assert judged("sdr_low_diversity", **codes([0.5, 0.52, 0.48, 0.51] * 3)) == []
    assert judged("sdr_low_diversity", **codes(after(0.9, 0.1))) == []


def test_unused_bits_are_reported_if_there_were_enough_rows_to_use_them() -> None:
    (event,) = judged("sdr_bit_usage", **bits(0.3, 1.0))
    assert "30.0% of the 512 bits of encoder" in event.message
    assert judged("sdr_bit_usage", **bits(0.3, 1.0, rows=20)) == []
    assert judged("sdr_bit_usage", **bits(0.9, 1.0)) == []


def test_unevenly_used_bits_are_reported() -> None:
    (event,) = judged("sdr_bit_usage", **bits(0.9, 4.0))
    assert event.metrics["unevenness"] == pytest.approx(4.0)


@pytest.mark.parametrize("value", [0.0005, 150.0, 0.09, 11.0])
def test_a_temperature_far_from_its_start_is_reported(value: float) -> None:
    (event,) = judged("sdr_temperature", **{"sdr_temperature@encoder": after(1.0, value)})
    assert (event.step, event.place) == (5, "encoder")


def test_a_temperature_that_is_lowered_tenfold_is_a_schedule() -> None:
    lowered = [10 ** (-step / (MEASUREMENTS - 1)) for step in range(MEASUREMENTS)]
    assert judged("sdr_temperature", **{"sdr_temperature@encoder": lowered}) == []


def test_representations_that_shrink_or_are_all_alike_have_collapsed() -> None:
    flat = [0.1] * MEASUREMENTS
    (event,) = judged("representation_collapse", **{"effective_rank@e": after(40.0, 2.0), "mean_cosine@e": flat})
    assert (event.step, event.place) == (6, "e")
    assert "effective rank of e 2.0" in event.message
    alike = {"effective_rank@e": [30.0] * MEASUREMENTS, "mean_cosine@e": after(0.2, 0.99)}
    (event,) = judged("representation_collapse", **alike)
    assert "0.99" in event.message
    first = {"effective_rank@e": [30.0] * MEASUREMENTS, "mean_cosine@e": after(0.99, 0.2, at=4)}
    assert judged("representation_collapse", **first) == []
    fair = {"effective_rank@e": after(40.0, 10.0), "mean_cosine@e": flat}
    assert judged("representation_collapse", **fair) == []


@pytest.mark.parametrize(("first", "from_start"), [(0.9, True), (0.1, False)])
def test_units_that_are_dead_since_the_first_steps_died_of_no_learning_rate(first: float, from_start: bool) -> None:
    dead = [first, *[0.95] * 6]
    rows = {"loss": [2.3] * 601, "activation_dead@body.1": [None] * 601}
    for place, value in zip((1, *range(100, 601, 100)), dead, strict=True):
        rows["activation_dead@body.1"][place] = value
    (finding,) = judged("dead_units", **rows)
    assert ("since the first steps" in finding.message) is from_start
    assert str(finding.remedies[0]).startswith("Check the initialisation" if from_start else "Lower the learning rate")
