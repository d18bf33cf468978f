from __future__ import annotations

import math

import pytest
from session.interrupting import Moments

from mlflow_stability.kinds.catalog import default_detectors, detectors_named
from mlflow_stability.kinds.panel import Panel, replay
from mlflow_stability.vocabulary.measured.signal import SHARED_TRACK, Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Reset

nan, inf = math.nan, math.inf


def events_of(losses: list[float], norms: list[float] | None = None, skips: list[float] | None = None) -> list[Finding]:
    records = []
    for number, loss in enumerate(losses):
        values = {"loss": loss}
        if skips is not None:
            values = {"skipped_steps": skips[number], **values}
        if norms is not None:
            values["grad_norm"] = norms[number]
        records.append(StepReading(number + 1, tuple(map(Signal, values)), tuple(values.values())))
    return replay(records, detectors_named(("nan_detected", "inf_detected")))


CASES: list[tuple[str, list[float], list[float] | None, list[float] | None, list[tuple[int, str]]]] = [
    ("nothing is wrong", [2.0, 1.0, 0.5], [1.0, 1.0, 1.0], None, []),
    ("one NaN is one finding", [2.0, nan, 0.5], None, None, [(2, "nan_detected")]),
    ("a run of NaN is one finding", [2.0, nan, nan, nan], None, None, [(2, "nan_detected")]),
    ("after recovery the next is another", [nan, 1.0, nan], None, None, [(1, "nan_detected"), (3, "nan_detected")]),
    ("infinity and NaN are told apart", [1.0, inf, nan], None, None, [(2, "inf_detected"), (3, "nan_detected")]),
    ("minus infinity counts", [1.0, -inf], None, None, [(2, "inf_detected")]),
    ("loss and norm together are one", [1.0, nan], [1.0, nan], None, [(2, "nan_detected")]),
    ("the norm alone counts", [1.0, 1.0], [1.0, inf], None, [(2, "inf_detected")]),
    ("a step that a scaler skipped is excused", [1.0, 1.0, 1.0], [1.0, inf, 1.0], [0, 1, 1], []),
    ("but not its loss", [1.0, nan, 1.0], [1.0, nan, 1.0], [0, 1, 1], [(2, "nan_detected")]),
    ("nor the step after it", [1.0, 1.0, 1.0], [1.0, inf, inf], [0, 1, 1], [(3, "inf_detected")]),
]


@pytest.mark.parametrize(
    ("losses", "norms", "skips", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_findings(
    losses: list[float],
    norms: list[float] | None,
    skips: list[float] | None,
    expected: list[tuple[int, str]],
) -> None:
    assert [(event.step, event.kind) for event in events_of(losses, norms, skips)] == expected


def test_an_event_says_what_happened_with_numbers_and_what_to_try() -> None:
    (event,) = events_of([2.04, nan])
    assert event.severity is Severity.CRITICAL
    assert event.message == "loss is NaN at step 2; last finite value 2.04."
    assert math.isnan(event.metrics["loss"])
    assert event.remedies


def test_places_are_judged_apart() -> None:
    here, there = Signal("loss"), Signal("loss", "track_1")
    findings = replay([StepReading(step, (here, there), (nan, nan)) for step in (1, 2)])
    assert [(event.step, event.place) for event in findings] == [(1, ""), (1, "track_1")]


def test_a_reset_forgets_what_came_before() -> None:
    reading = StepReading(1, (Signal("loss"),), (nan,))
    assert len(replay([reading, reading])) == 1
    assert len(replay([reading, Reset(1, 1, "asked"), reading])) == 2


def test_what_no_detector_asks_for_costs_nothing_and_finds_nothing() -> None:
    assert replay([StepReading(1, (Signal("micro_batches"), Signal("step_time")), (nan, inf))]) == []


def test_a_judgement_that_ctrl_c_has_ended_half_way_tears_no_detector() -> None:
    first, two = tuple(map(Signal, ("loss", "grad_norm"))), tuple(map(Signal, ("loss", "grad_norm", "update_ratio")))
    panel, step, interrupted = Panel(default_detectors()), 0, 0
    for at in (*range(1, 60), *range(60, 400, 17)):
        moments = Moments(at)
        signals = two if at % 3 else first
        try:
            with moments.counted():
                panel.judge(StepReading(step, signals, (1.0, 2.0, 0.01)[: len(signals)]))
        except KeyboardInterrupt:
            interrupted += 1
        for _ in range(3):
            step += 1
            assert panel.judge(StepReading(step, signals, (1.0, 2.0, 0.01)[: len(signals)])) == []
    assert interrupted > 50
    findings = panel.judge(StepReading(step + 1, first, (nan, 2.0)))
    assert [finding.kind for finding in findings] == ["nan_detected"]


def rates(values: list[float], first: int) -> list[StepReading]:
    return [StepReading(step, (Signal("learning_rate"),), (value,)) for step, value in enumerate(values, first)]


def test_a_learning_rate_that_was_rolled_back_from_is_a_jump_again() -> None:
    cycle = [2e-3, 1e-3, 1e-7]
    jump, later = rates([*cycle, 0.2, 0.2], 0), rates([0.19, 0.1, 1e-7, 0.2], 5)
    findings = replay([*jump, Reset(5, 1, "rolled back"), *later], detectors_named(("learning_rate_jump",)))
    assert [point.step for point in findings] == [3, 8]
    assert replay([*jump, *later], detectors_named(("learning_rate_jump",)))[1:] == []


def test_another_start_of_the_training_knows_nothing_of_the_rates_before_it() -> None:
    panel = Panel(detectors_named(("learning_rate_jump",)))
    for rate in rates([2e-3, 1e-3], 0):
        panel.judge(rate)
    panel.restart()
    assert [event for rate in rates([1.0, 1.0], 2) for event in panel.judge(rate)] == []


def test_layers_of_a_training_are_not_compared_with_those_of_one_before() -> None:
    def findings(other: int) -> list[str]:
        """Of weights that are large from step 401 on, beside another training from a step on."""
        records = []
        for step in range(1, 801):
            values = {Signal("loss", "track_1" if step >= other else ""): 1.0}
            values[Signal("param_norm", "head")] = (300.0 if step > 400 else 3.0) + step % 7 / 100
            records.append(StepReading(step, tuple(values), tuple(values.values())))
        return [finding.kind for finding in replay(records, detectors_named(("weight_spike",)))]

    assert findings(401) == []
    assert findings(11) == findings(801) == ["weight_spike"]


@pytest.mark.parametrize("place", ["track_1", SHARED_TRACK])
def test_losses_of_unrelated_trainings_are_not_compared_but_nan_is_found(place: str) -> None:
    signals = (Signal("loss", place), Signal("grad_norm", place), Signal("param_norm", "head"))
    records = []
    for step in range(1, 601):
        level = (1e4 if step > 400 else 1.0) + step % 7 / 100
        records.append(StepReading(step, signals, (math.nan if step == 590 else level, 1.0, level)))
    findings = {finding.kind for finding in replay(records)}
    compared = {"loss_spike", "divergence", "weight_spike"}
    assert "nan_detected" in findings
    assert (findings & compared == set()) is (place == SHARED_TRACK)
