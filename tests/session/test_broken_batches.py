from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from probes.looked_into import unguarded
from torch import Tensor, nn
from torch.optim import SGD

from mlflow_stability.probes.forward.forward_passes import ForwardWatch
from mlflow_stability.session.broken_batches import MOST_FILES, BatchReport
from mlflow_stability.vocabulary.result import Finding


class Counting(nn.Module):
    """Knows how many times it was run; with others, each run would wait for theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.runs = torch.zeros(())

    def forward(self, inputs: Tensor) -> Tensor:
        self.runs += 1
        output: Tensor = self.layer(inputs)
        return output


def listening(model: nn.Module, report: BatchReport) -> BatchReport:
    """The report hears of the model's passes while the test goes on."""
    watches.append(ForwardWatch(unguarded, [report.capture]))
    watches[-1].before_step(SGD(model.parameters(), lr=0.1))
    return report


watches: list[ForwardWatch] = []


def broken() -> Tensor:
    return torch.tensor([[1.0, math.nan]])


@pytest.mark.parametrize("of_several", [False, True])
def test_a_batch_is_run_again_only_by_a_process_that_trains_alone(tmp_path: Path, of_several: bool) -> None:
    model, findings = Counting(), list[Finding]()
    report = listening(model, BatchReport(unguarded, tmp_path, of_several))
    model(broken())
    report.before_steps()
    report.report(0, findings.append)
    report.stop()
    findings = [finding for finding in findings if finding.kind == "broken_batch"]
    (event,) = findings
    assert "1 NaN" in event.message
    assert ("in the first process" in event.message) == of_several
    assert ("without them" in event.message) == of_several
    assert model.runs == 1 or not of_several
    again = {} if of_several else {"finite_again": 0.0}
    assert event.metrics == {"not_finite.args[0]": 1.0, "least.args[0]": 1.0, "greatest.args[0]": 1.0} | again


def test_files_are_few_and_announced_once(tmp_path: Path) -> None:
    model, findings, announced = Counting(), list[Finding](), list[int]()
    kept = tmp_path / "kept"
    report = listening(model, BatchReport(unguarded, kept, to_be_sent=lambda: announced.append(len(findings))))
    for step in range(2 * MOST_FILES + 4):
        model(torch.ones(1, 2) if step % 2 else broken())
        report.before_steps()
        if step % 2 == 0:
            report.report(step, findings.append)
    report.stop()
    findings = [finding for finding in findings if finding.kind == "broken_batch"]
    assert len(findings) == MOST_FILES + 2
    assert len(list((tmp_path / "kept").iterdir())) == MOST_FILES
    assert announced == [0]
    assert ["stability/batches/" in finding.message for finding in findings] == [True] * MOST_FILES + [False] * 2


def test_the_first_of_consecutive_broken_steps_is_reported(tmp_path: Path) -> None:
    model, values = Counting(), list[Finding]()
    report = listening(model, BatchReport(unguarded, tmp_path))
    for step in range(4):
        model(broken())
        report.before_steps()
        report.inspect_step(step, [])
        report.report(step, values.append)
    report.stop()
    assert [(finding.step, finding.kind) for finding in values] == [(0, "broken_batch"), (0, "nan_origin")]


def test_of_two_models_that_train_side_by_side_each_layer_has_its_own_name(tmp_path: Path) -> None:
    maker, judge, values = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), Counting(), list[Finding]()
    optimizers = [SGD(maker.parameters(), lr=0.1), SGD(judge.parameters(), lr=0.1)]
    report = listening(maker, BatchReport(unguarded, tmp_path))
    listening(judge, report)
    made = maker(torch.ones(1, 2))
    with torch.no_grad():
        judge.layer.weight[0, 1] = math.inf
    judge(made)
    report.before_steps()
    report.report(0, values.append, optimizers)
    report.stop()
    assert [signal.place for signal in values] == ["", "Counting.layer"]


def test_nothing_is_reported_without_a_captured_batch(tmp_path: Path) -> None:
    values = list[Finding]()
    BatchReport(unguarded, tmp_path).report(7, values.append)
    assert values == []
