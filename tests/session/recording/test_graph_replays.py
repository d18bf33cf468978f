"""A training in CUDA graphs: what is replayed is counted, and a step that is replayed as a whole is reported.

The graph is played by a stand-in: it writes to its tensors without autograd and without a hook, as a replay does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
import torch
from torch import nn

import mlflow_stability
from mlflow_stability.journal.journal import read_journal
from mlflow_stability.vocabulary.measured.signal import StepReading

SAID = "replays of CUDA graphs"


class Graph:
    """What was captured is run again, without any hook."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    def replay(self) -> None:
        self.run()


@pytest.fixture
def lines(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    original = Graph.replay
    caplog.set_level(logging.WARNING, "mlflow_stability")
    options = mlflow_stability.Options(journal_dir=tmp_path / "journals")
    mlflow_stability.autolog(offline=True, strict=True, options=options)
    yield caplog
    mlflow_stability.autolog(disable=True)
    assert Graph.replay is original


def messages_in(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in lines.records if SAID in record.getMessage()]


def warmed_up(steps: int) -> tuple[nn.Linear, torch.optim.SGD]:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_a_step_captured_as_a_whole_is_reported_once(lines: pytest.LogCaptureFixture) -> None:
    model, _ = warmed_up(3)

    def whole_step() -> None:
        model.weight.data.mul_(0.99)

    graph = Graph(whole_step)
    for _ in range(500):
        graph.replay()
    (line,) = messages_in(lines)
    assert "autolog() saw 200 replays of CUDA graphs since step 3 and no optimizer step: not recorded" in line
    assert "call optimizer.step() after the replay" in line


def test_predictions_with_cuda_graphs_are_not_reported(lines: pytest.LogCaptureFixture) -> None:
    graph = Graph(lambda: None)
    for _ in range(300):
        graph.replay()
    warmed_up(40)
    for _ in range(300):
        graph.replay()
    assert messages_in(lines) == []


def test_steps_after_replays_are_recorded_each_with_its_gradients_and_the_count(
    lines: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with mlflow.start_run():
        model, optimizer = warmed_up(3)

        def forward_and_backward() -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.copy_(torch.full_like(parameter, 2.0))

        graph = Graph(forward_and_backward)
        for _ in range(10):
            graph.replay()
            graph.replay()
            optimizer.step()
    mlflow_stability.autolog(disable=True)
    (journal,) = (tmp_path / "journals").rglob("journal")
    readings = [item for item in read_journal(journal) if isinstance(item, StepReading)]
    steps = [
        {
            signal.quantity: value
            for signal, value in zip(reading.signals, reading.values, strict=True)
            if not signal.place
        }
        for reading in readings
    ]
    assert len(steps) == 13
    assert all("graph_replays" not in step for step in steps[:3])
    assert [step["graph_replays"] for step in steps[3:]] == [2.0] * 10
    assert [step["grad_norm"] for step in steps[3:]] == [pytest.approx(2.0 * 5**0.5)] * 10
    assert messages_in(lines) == []
