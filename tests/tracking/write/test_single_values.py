from __future__ import annotations

import json
import math

from mlflow_stability.tracking.thinning import Point, SingleValues
from mlflow_stability.vocabulary.measured.signal import Signal


def points(quantity: str, *values: float) -> list[Point]:
    return [Point(Signal(quantity), 10 * number, value, 0.0) for number, value in enumerate(values, start=1)]


def test_a_curve_with_a_single_point_is_no_metric() -> None:
    assert SingleValues().of_curves(points("loss", 1.0) + points("adam_rms", 0.5)) == []


def test_what_never_changes_is_no_metric_and_what_changes_has_all_that_was_held_back() -> None:
    assert SingleValues().of_curves(points("micro_batches", 1.0, 1.0, 1.0)) == []
    assert SingleValues().of_curves(points("grad_zeros", math.nan, math.nan)) == []
    values = SingleValues().of_curves(points("micro_batches", 1.0, 1.0, 1.0, 2.0, 2.0))
    assert [(point.step, point.value) for point in values] == [(10, 1.0), (30, 1.0), (40, 2.0), (50, 2.0)]


def test_a_constant_learning_rate_is_drawn() -> None:
    constant = points("learning_rate", 0.1, 0.1, 0.1)
    assert SingleValues().of_curves(constant) == constant


def test_after_a_restart_the_same_values_are_held_back() -> None:
    given = [*points("loss", 1.0, 0.5), *points("micro_batches", 1.0, 1.0, math.inf), *points("tflops", 3.0)]
    for cut in range(len(given)):
        first = SingleValues()
        begun = first.of_curves(given[:cut])
        again = SingleValues(json.loads(json.dumps(first.saved())))
        assert begun + again.of_curves(given[cut:]) == SingleValues().of_curves(given)


def test_a_recording_that_is_older_than_this_rule_continues_its_curves() -> None:
    again = SingleValues({"kept": [["micro_batches", "", 40]]})
    assert again.of_curves(points("micro_batches", 1.0)) == points("micro_batches", 1.0)
