from __future__ import annotations

import math

from findings import at_step
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.alerts.run_metrics import BUCKETS, EVERYTHING, RunMetrics
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Fact

VALUES = st.floats(0, 100) | st.just(math.nan)
READINGS = st.lists(
    st.fixed_dictionaries({"loss": VALUES, "tokens_processed": VALUES, "step_time": VALUES}), max_size=40
)


def reading(step: int, place: str = "", **values: float) -> StepReading:
    return StepReading(step, tuple(Signal(value, place) for value in values), tuple(values.values()), 0, float(step))


def test_the_last_values_the_steps_and_the_labels() -> None:
    metrics = RunMetrics("abc")
    metrics.take(Fact("model", "GPT"))
    metrics.take(reading(1, loss=3.0, mfu=0.4))
    metrics.take(reading(2, loss=2.0))
    metrics.take(reading(2, "track_1", loss=9.0))
    metrics.take(reading(2, val_loss=2.5, val_loss_step=2.0))
    samples = metrics.samples()
    assert samples.labels == {"model_name": "GPT", "run_id": "abc"}
    assert samples.values["llm_training_loss"] == 2.0
    assert samples.values["llm_validation_loss"] == 2.5
    assert samples.values["llm_model_flops_utilization"] == 0.4
    assert samples.values["llm_training_steps_total"] == 2


def test_memory_is_kept_by_device() -> None:
    metrics = RunMetrics()
    metrics.take(reading(10, memory_allocated=5.0, memory_share=0.5))
    assert metrics.samples().devices("memory_allocated") == [("0", 5.0)]
    metrics.take(reading(20, "cuda:1", memory_allocated=7.0))
    metrics.take(reading(30, "cuda:1", memory_allocated=8.0))
    assert metrics.samples().devices("memory_allocated") == [("0", 5.0), ("1", 8.0)]
    assert metrics.samples().devices("memory_share") == [("0", 0.5)]
    assert metrics.samples().devices("memory_peak") == []


def test_events_are_counted_by_type_and_severity() -> None:
    metrics = RunMetrics()
    for kind, severity in [("loss_spike", 20), ("loss_spike", 30), ("gradient_explosion", 20), ("layer_explosion", 10)]:
        metrics.take(at_step(1, kind, Severity(severity), "it happened"))
    samples = metrics.samples()
    assert samples.events[("loss_spike", "critical")] == 1
    assert samples.values["llm_loss_spikes_total"] == 2
    assert samples.spikes("llm_loss_spikes_total") == {"info": 0, "warning": 1, "critical": 1}
    assert samples.values["llm_gradient_spikes_total"] == 2


@given(READINGS)
def test_counters_never_fall_and_the_histogram_has_every_step_time(readings: list[dict[str, float]]) -> None:
    metrics, before = RunMetrics(), metrics_values(RunMetrics())
    taken: list[float] = []
    metrics.on_step_time = taken.append
    for step, values in enumerate(readings, 1):
        metrics.take(reading(step, **values))
        after = metrics_values(metrics)
        for item in EVERYTHING:
            if item.counter and item.prometheus in before and not math.isnan(before[item.prometheus]):
                assert after[item.prometheus] >= before[item.prometheus]
        before = after
    times = [row["step_time"] for row in readings if not math.isnan(row["step_time"])]
    samples = metrics.samples()
    assert sum(samples.buckets) == len(times)
    assert taken == times
    assert sum(samples.buckets[: BUCKETS.index(1.0) + 1]) == sum(time <= 1.0 for time in times)
    assert math.isclose(samples.seconds, sum(times), abs_tol=1e-6)


def metrics_values(metrics: RunMetrics) -> dict[str, float]:
    return dict(metrics.samples().values)
