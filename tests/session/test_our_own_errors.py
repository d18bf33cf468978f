"""An error of ours inside a hook costs that part of the recording, and nothing of the training."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import mlflow_stability
from mlflow_stability.journal.journal import read_journal
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Note


class Treacherous(torch.optim.SGD):
    """Its groups cannot be read for a learning rate after some steps, as some wrappers' cannot."""

    def __init__(self, parameters: object, lr: float) -> None:
        super().__init__(parameters, lr)  # type: ignore[arg-type]
        self.steps = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step()
        self.steps += 1
        if self.steps == 5:
            self.param_groups[0]["lr"] = Rate(0.1)


class Rate(float):
    """A number that works for SGD and not for us."""

    def __float__(self) -> float:
        raise RuntimeError("no rate today")


def train(steps: int) -> Tensor:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = Treacherous(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_part_is_off_after_one_warning_and_the_weights_are_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bare = train(20)
    mlflow_stability.autolog(offline=True)
    session = mlflow_stability.current_session()
    assert session is not None
    with caplog.at_level(logging.WARNING, "mlflow_stability"):
        watched = train(20)
    assert torch.equal(bare, watched)
    assert list(session.parts_off) == ["learning rate"]
    (record,) = caplog.records
    assert record.getMessage() == (
        "Part 'learning rate' of mlflow-stability failed at step 5 (RuntimeError: no rate today) and is switched off. "
        "Training continues unchanged without it. Pass strict=True to see the traceback."
    )
    recording = session.recording
    assert recording is not None
    mlflow_stability.autolog(disable=True)
    records = read_journal(recording.folder / "journal")
    steps = [item for item in records if isinstance(item, StepReading)]
    assert len(steps) == 20
    assert [Signal("learning_rate") in step.signals for step in steps] == [True] * 5 + [False] * 15
    assert all(Signal("grad_norm") in step.signals for step in steps)
    assert [point.value for point in records if isinstance(point, Note) and point.key == "degraded"] == [
        "learning rate: RuntimeError: no rate today (step 5)"
    ]


def test_strict_raises_it_instead() -> None:
    mlflow_stability.autolog(strict=True, offline=True)
    try:
        with pytest.raises(RuntimeError, match="no rate today"):
            train(20)
    finally:
        mlflow_stability.autolog(disable=True)


def test_models_and_optimizers_that_come_and_go_are_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    mlflow_stability.autolog(offline=True, rollback=True)
    session = mlflow_stability.current_session()
    assert session is not None
    with caplog.at_level(logging.WARNING, "mlflow_stability"):
        for step in range(40):
            model = nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            (model(torch.randn(4, 3)) * (torch.nan if step == 39 else 1.0)).square().mean().backward()
            optimizer.step()
    assert all(weight.isfinite().all() for weight in model.parameters())
    messages = [record.getMessage() for record in caplog.records if "rollbacks" in record.getMessage()]
    assert messages == [
        "No rollbacks from step 32 on: the training's optimizers changed 32 times. Steps are recorded as before."
    ]
    assert not any("failed" in record.getMessage() for record in caplog.records)
    mlflow_stability.autolog(disable=True)
