"""A recording says once that it sees no loss, and not too often that losses were discarded."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from findings import at_step
from scenarios.flying import flying
from scenarios.watching import batches, mse, tiny_model
from torch import nn
from torch.optim import SGD

import mlflow_stability
from mlflow_stability.journal.journal import JOURNAL as JOURNAL
from mlflow_stability.journal.journal import Record, read_journal
from mlflow_stability.kinds.catalog import detectors_named, documentation
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJump
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.step.capture import ProbeReading
from mlflow_stability.session.recording.recording import REPORT_EVERY_STEPS, LossCount, Recording
from mlflow_stability.session.recording.representation_totals import VERDICTS, RepresentationTotals
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing, Note, Opening


def by_torch_func(model: nn.Module, steps: int) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for inputs, targets in batches(steps):
        names = dict(model.named_parameters())

        def loss_of(values: dict[str, torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(torch.func.functional_call(model, values, (inputs,)), targets)

        gradients = torch.func.grad(loss_of)({name: tensor.detach() for name, tensor in names.items()}, inputs, targets)
        for name, parameter in names.items():
            parameter.grad = gradients[name]
        optimizer.step()


def as_a_pipeline_stage(model: nn.Module, steps: int) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for inputs, _ in batches(steps):
        outputs = model(inputs)
        outputs.backward(torch.ones_like(outputs))
        optimizer.step()
        optimizer.zero_grad()


def by_hand(model: nn.Module, steps: int) -> None:
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.1)
        optimizer.step()


TRAININGS: dict[str, Callable[[nn.Module, int], None]] = {
    "torch.func": by_torch_func,
    "a pipeline stage": as_a_pipeline_stage,
    "gradients by hand": by_hand,
}


def loss_findings(records: list[Record]) -> list[Finding]:
    return [record for record in records if isinstance(record, Finding) and record.place == "loss"]


@pytest.mark.parametrize("steps", [3, 60])
@pytest.mark.parametrize("kind", TRAININGS)
def test_a_training_without_a_loss_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, steps: int
) -> None:
    caplog.set_level(logging.WARNING, "mlflow_stability")
    with flying(tmp_path) as flown:
        options = mlflow_stability.Options(journal_dir=tmp_path / "journals")
        mlflow_stability.autolog(offline=True, strict=True, options=options)  # not silent
        TRAININGS[kind](tiny_model(), steps)
    (event,) = loss_findings(flown.records)
    assert (event.kind, event.severity) == ("not_measured", Severity.INFO)
    assert f"No loss recorded in {min(steps, 20)} steps" in event.message
    (note,) = [record for record in flown.records if isinstance(record, Note) and record.key == "loss"]
    assert note.value.startswith("no loss recorded")
    lines = [record.getMessage() for record in caplog.records if "No loss recorded" in record.getMessage()]
    assert len(lines) == 1
    assert "attach(model, optimizer)" in lines[0]


def test_a_training_with_a_loss_says_nothing(tmp_path: Path) -> None:
    with flying(tmp_path) as flown:
        model = tiny_model()
        optimizer = SGD(model.parameters(), lr=0.1)
        for number, batch in enumerate(batches(30)):
            if number == 2:
                mse(model, batch).backward()
            optimizer.step()
    assert not loss_findings(flown.records)


def test_the_end_is_recorded_even_where_something_before_it_fails(tmp_path: Path) -> None:
    def fails(_event: Finding) -> None:
        raise ValueError("broken")

    guard = PartGuard(strict=True, on_failure=lambda part, error: None)
    recording = Recording(tmp_path / "here", Opening("here", os.getpid(), 0.0, "here", 0.0), (), guard, fails)
    recording.record(ProbeReading((Signal("grad_norm"),), (1.0,), 0.0, ""))
    with pytest.raises(ValueError, match="broken"):  # it tells of the missing loss
        recording.close(Closing("crashed", run_was_active=False))
    *_, last = read_journal(recording.folder / JOURNAL)
    assert isinstance(last, Closing)
    assert (last.outcome, last.step) == ("crashed", 1)


def test_a_learning_rate_jump_is_reported_before_its_consequences(tmp_path: Path) -> None:
    findings: list[Finding] = []
    guard = PartGuard(strict=True, on_failure=lambda part, error: None)
    detectors = (GradientExplosion(), LearningRateJump())
    recording = Recording(
        tmp_path / "here", Opening("here", os.getpid(), 0.0, "here", 0.0), detectors, guard, findings.append
    )
    signals = (Signal("grad_norm"), Signal("learning_rate"))
    for step in range(1, 105):
        norm, rate = 1.0 + 0.1 * (step % 5) + 1000.0 * (step > 101), 1e-4 if step <= 100 else 0.1
        recording.record(ProbeReading(signals, (norm, rate), float(step), "", begins_step=True))
    recording.close(Closing("finished", run_was_active=False))
    result = [(finding.step, finding.kind) for finding in findings if finding.step > 100]
    assert result == [(101, "learning_rate_jump"), (102, "gradient_explosion")]


def test_discarded_losses_are_counted_and_reported_rarely() -> None:
    account = LossCount()
    values = []
    for step in range(1, 251):
        discarded = (math.nan,) if step % 2 else ()
        values += account.take(step, ProbeReading((Signal("loss"),), (1.0,), 0.0, "", (), discarded))
    assert [point.step for point in values] == [1, 1 + REPORT_EVERY_STEPS, 1 + 2 * REPORT_EVERY_STEPS]
    assert [item.metrics["discarded"] for item in values] == [1, 51, 101]


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
    signals = tuple(Signal(code, place) for code in (*CODES, "sdr_unique_ratio"))
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
    signals = tuple(Signal(name, "body") for name in ("effective_rank", "stable_rank", "mean_cosine"))
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
