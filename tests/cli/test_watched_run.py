from __future__ import annotations

from math import nan

from findings import at_step

from mlflow_stability.cli.watch import MAX_FINDINGS, WatchedRun
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing

SIGNALS = (Signal("loss"), Signal("grad_norm"), Signal("grad_norm", "layer.0"), Signal("eta_seconds"))


def reading(step: int, loss: float, time: float = 0.0, attempt: int = 0) -> StepReading:
    return StepReading(step, SIGNALS, (loss, 1.5, 99.0, 120.0), attempt, time)


def spike(step: int, severity: Severity = Severity.WARNING) -> Finding:
    return at_step(step, "loss_spike", severity, f"loss spiked at step {step}.")


def test_curves_are_those_of_the_whole_model_with_the_steps_of_the_run() -> None:
    run = WatchedRun()
    for step in range(1, 51):
        run.add(reading(step, 5.0 - step / 50, 1000 + step / 4), offset=100)
    assert (run.last_step, run.value("grad_norm"), run.best_loss) == (150, 1.5, (4.0, 150))
    assert run.curve("loss").steps[[0, -1]].tolist() == [101, 150]
    assert run.steps_per_second == 4.0
    assert run.seconds_left(now=1012.5 + 30) == 90.0


def test_a_loss_that_is_nan_is_never_the_best() -> None:
    run = WatchedRun()
    for step, loss in enumerate((nan, 2.0, nan), start=1):
        run.add(reading(step, loss))
    assert run.best_loss == (2.0, 2)


def test_events_that_are_near_are_one_finding_with_the_worst_of_them() -> None:
    run = WatchedRun()
    for event in (spike(10), spike(12, Severity.CRITICAL), spike(14), spike(500)):
        run.add(event, offset=1)
    first, second = run.findings
    assert (first.start, first.peak, first.end, first.count, first.severity) == (11, 13, 15, 3, Severity.CRITICAL)
    assert first.message == "loss spiked at step 12."
    assert second.start == 501


def test_what_is_kept_of_a_long_run_is_bounded() -> None:
    run = WatchedRun()
    for step in range(20_000):
        run.add(reading(step, 1.0))
        if step % 50 == 0:
            run.add(spike(step))
    assert len(run.curve("loss")) <= 4096
    assert len(run.findings) == MAX_FINDINGS


def test_it_has_ended_until_another_step_comes() -> None:
    run = WatchedRun()
    run.add(reading(1, 1.0))
    run.add(Closing("out_of_memory"))
    assert run.ended == "out of memory"
    run.add(reading(2, 1.0))
    assert run.ended == ""
