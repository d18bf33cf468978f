from __future__ import annotations

import torch

from mlflow_stability.probes.step.capture import ProbeReading, StepCapture, reading_of


def reading(loss: float, rates: dict[str, float], step_time: float | None = 0.1) -> ProbeReading:
    capture = StepCapture()
    capture.losses, capture.micro_batches, capture.track = [torch.tensor(loss)], 1, 0
    capture.learning_rates.update(rates)
    return reading_of(capture, [loss, *rates.values()], (), "", step_time, 0.0, {})


def test_as_long_as_the_same_is_measured_the_names_are_the_same_object() -> None:
    first, second = reading(1.0, {"": 0.1}), reading(2.0, {"": 0.2})
    assert first.signals is second.signals
    assert first.values != second.values


def test_where_something_else_is_measured_the_names_are_others() -> None:
    usual = reading(1.0, {"": 0.1})
    for other in (reading(1.0, {"": 0.1}, step_time=None), reading(1.0, {"": 0.1, "group_1": 0.2})):
        assert other.signals != usual.signals
        assert len(other.signals) == len(other.values)
