from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mlflow_stability.session.batch_report import MOST_FILES, BatchReport
from mlflow_stability.vocabulary.event import Event


class Counting(nn.Module):
    """Knows how many times it was run; with others, each run would wait for theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.runs = torch.zeros(())

    def forward(self, inputs: Tensor) -> Tensor:
        self.runs += 1
        found: Tensor = self.layer(inputs)
        return found


def broken() -> Tensor:
    return torch.tensor([[1.0, math.nan]])


@pytest.mark.parametrize("of_several", [False, True])
def test_a_batch_is_run_again_only_by_a_process_that_trains_alone(tmp_path: Path, of_several: bool) -> None:
    model, told = Counting(), list[Event]()
    report = BatchReport(tmp_path, of_several)
    report.watch([model])
    model(broken())
    report.report(7, told.append)
    report.close()
    (event,) = told
    assert "1 NaN" in event.message
    assert ("in the first process" in event.message) == of_several
    assert ("without them" in event.message) == of_several
    assert model.runs == 1 or not of_several
    assert event.evidence == {"not_finite.args[0]": 1.0}


def test_files_are_few_and_announced_once(tmp_path: Path) -> None:
    model, told, announced = Counting(), list[Event](), list[int]()
    report = BatchReport(tmp_path / "kept", to_be_sent=lambda: announced.append(len(told)))
    report.watch([model])
    for step in range(1, MOST_FILES + 3):
        model(broken())
        report.report(step, told.append)
    report.close()
    assert len(told) == MOST_FILES + 2
    assert len(list((tmp_path / "kept").iterdir())) == MOST_FILES
    assert announced == [0]
    assert ["stability/batches/" in each.message for each in told] == [True] * MOST_FILES + [False] * 2


def test_nothing_is_said_of_a_batch_that_nobody_saw(tmp_path: Path) -> None:
    told = list[Event]()
    BatchReport(tmp_path).report(7, told.append)
    assert told == []
