from __future__ import annotations

from findings import at_step

from mlflow_stability.kinds.catalog import detectors_named, documentation
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.session.recording.representation_summary import VERDICTS, RepresentationTotals
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

CODES = {
    "sdr_rows": 100.0,
    "sdr_width": 512.0,
    "sdr_active_bits": 26.0,
    "sdr_input_ratio": 0.8,
    "sdr_bit_usage": 0.9,
    "sdr_duty_entropy": 0.95,
    "sdr_overlap": 1.5,
    "sdr_overlap_expected": 1.32,
}


def summed_up(shares: list[float], place: str = "encoder") -> list[Finding]:
    """A training whose codes have these shares of unique patterns, measured every hundred steps."""
    account, panel = RepresentationTotals(), Panel(detectors_named(VERDICTS))
    signals = tuple(Signal(each, place) for each in (*CODES, "sdr_unique_ratio"))
    for number, share in enumerate(shares, start=1):
        for step in (StepReading(100 * number - 1, (Signal("loss"),), (2.0,)),):
            account.take(step)
        reading = StepReading(100 * number, signals, (*CODES.values(), share))
        account.take(reading)
        for event in panel.judge(reading):
            account.count(event)
    return account.events(1000)


def test_the_summary_has_the_averages_the_last_values_and_the_verdict() -> None:
    (event,) = summed_up([0.8, 0.72, 0.64])
    assert (event.step, event.kind, event.severity, event.place) == (
        1000,
        "representation_summary",
        Severity.INFO,
        "encoder",
    )
    assert "90.0% unique patterns (80.0% at the end), active bits 26.0/512 (5.1%)" in event.message
    assert event.message.endswith("Verdict: healthy, no warnings.")
    assert event.metrics["measurements"] == 3


def test_a_collapse_is_the_verdict_with_its_first_step_and_the_number_of_warnings() -> None:
    (event,) = summed_up([0.8, 0.1, 0.1, 0.1, 0.8, 0.1, 0.1])
    assert event.message.endswith("Verdict: codes collapsed, first seen at step 300; 2 warnings.")
    assert event.metrics["warnings"] == 2
    assert event.remedies


def test_other_representations_are_summarized_by_their_ranks() -> None:
    account = RepresentationTotals()
    signals = tuple(Signal(each, "body") for each in ("effective_rank", "stable_rank", "mean_cosine"))
    for step, rank in ((100, 20.0), (200, 10.0)):
        account.take(StepReading(step, signals, (rank, 4.0, 0.25)))
    (event,) = account.events(200)
    assert "Representations of body, averages of 2 measurements: effective rank 15.0 (10.0 at the end)" in event.message


def test_a_training_without_representations_has_nothing_to_sum_up() -> None:
    account = RepresentationTotals()
    account.take(StepReading(1, (Signal("loss"), Signal("grad_norm", "a")), (1.0, 1.0)))
    account.count(at_step(1, "sdr_collapse", Severity.CRITICAL, "", place="elsewhere"))
    assert account.events(1) == []


def test_the_summary_is_explained_like_every_kind() -> None:
    assert documentation("representation_summary").severities == (Severity.INFO,)
