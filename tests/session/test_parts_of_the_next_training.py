"""What fails in one training is tried again in the next one; what a script makes again at every step costs little."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from torch import Tensor, nn

import mlflow_stability
from mlflow_stability.probes.parameters.adam_rms import AdamRms
from mlflow_stability.probes.performance import progress
from mlflow_stability.tracking.in_process import lightning_run


@pytest.fixture(autouse=True)
def store(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("MLFLOW_STABILITY_JOURNAL_DIR", str(tmp_path / "journal"))
    yield
    mlflow_stability.autolog(disable=True)


class Answering(nn.Module):
    """Answers questions about its parameters in its own way, and takes fewer arguments, as the losses of torchrl do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:  # type: ignore[override]
        for name, item in super().named_parameters(prefix, recurse):
            if not name.startswith("target"):
                yield name, item

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output


def train(model: nn.Module, steps: int, anew: bool = False) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        if anew:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
def test_a_part_that_failed_is_on_again_for_the_next_training(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow_stability.autolog(offline=True, silent=True, layers_every_n_steps=10)
    session = mlflow_stability.current_session()
    assert session is not None

    def failing(*_: object) -> None:
        raise ValueError("not this time")

    with monkeypatch.context() as broken, mlflow.start_run():
        broken.setattr(AdamRms, "after_step", failing)
        train(nn.Linear(4, 1), 12)
        assert session.parts_off == {"AdamW RMS": "ValueError: not this time"}
    with mlflow.start_run():
        train(nn.Linear(4, 1), 12)
        assert session.parts_off == {}


def test_a_model_that_answers_in_its_own_way_is_asked_as_torch_asks() -> None:
    mlflow_stability.autolog(offline=True, strict=True, layers_every_n_steps=10, rollback=True)
    session = mlflow_stability.current_session()
    assert session is not None
    train(Answering(), 22)
    assert session.step == 22
    assert session.parts_off == {}


@pytest.mark.slow
def test_an_optimizer_for_every_step_has_few_walks_over_all_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("lightning.pytorch")
    walks = 0
    objects = gc.get_objects

    def counted(*args: Any) -> list[Any]:
        nonlocal walks
        walks += 1
        return objects(*args)

    monkeypatch.setattr(gc, "get_objects", counted)
    mlflow_stability.autolog(offline=True, strict=True)
    train(nn.Linear(4, 1), 360, anew=True)
    before = walks
    train(nn.Linear(4, 1), 100, anew=True)
    assert before < 48
    after = walks
    assert after <= before + 1  # the second model is a training beside the first, and is named once
    assert lightning_run() is None
    assert walks == after


@pytest.mark.parametrize("rollback", [False, True], ids=["watched", "rollback"])
def test_a_training_without_a_schedule_has_one_walk_over_all_objects(
    monkeypatch: pytest.MonkeyPatch, rollback: bool
) -> None:
    walks = 0
    objects = gc.get_objects

    def counted(*args: Any) -> list[Any]:
        nonlocal walks
        walks += 1
        return objects(*args)

    monkeypatch.setattr(progress, "TRAINERS", ())  # as where no library of trainers was imported
    gc.collect()  # schedules of other tests that go later would be missed, and looked for
    monkeypatch.setattr(gc, "get_objects", counted)
    mlflow_stability.autolog(offline=True, strict=True, rollback=rollback)
    train(nn.Linear(4, 1), 102)
    assert walks == 1
