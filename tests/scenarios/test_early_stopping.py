from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from scenarios.flying import Flown, flying
from torch import Tensor, nn

from mlflow_stability.errors import TrainingDiverged


def train(steps: int = 60, huge_at: int = 0, clip: float | None = None, validations: bool = False) -> dict[str, Tensor]:
    """Train until something stops it; gives the weights, and those of before the last step under ``before.``."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    before: dict[str, Tensor] = {}
    try:
        for step in range(1, steps + 1):
            inputs = torch.randn(16, 4) * (100 if step == huge_at else 1)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            before = {f"before.{name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}
            optimizer.step()
            if validations and step % 5 == 0:
                mlflow.log_metric("val_loss", max(1.0 - step / 40, 0.5), step=step // 5)
    except TrainingDiverged as stopped:
        before["message"] = str(stopped)  # type: ignore[assignment]
    return {**model.state_dict(), **before}


def unchanged(output: dict[str, Tensor]) -> bool:
    return all(torch.equal(output[name], output[f"before.{name}"]) for name in ("weight", "bias"))


def stopped(flown: Flown) -> list[int]:
    return [event.step for event in flown.events("early_stopping")]


@pytest.mark.parametrize(
    ("stop_on", "trained"),
    [
        ("loss>100", {"huge_at": 40}),
        ("grad_norm>100", {"huge_at": 40}),
        ("grad_norm>100", {"huge_at": 40, "clip": 1.0}),
        ("loss>100", {"huge_at": 1}),
    ],
)
@pytest.mark.parametrize("rollback", [False, True])
def test_a_step_that_meets_a_condition_is_not_taken(
    tmp_path: Path, stop_on: str, trained: dict[str, Any], rollback: bool
) -> None:
    with flying(tmp_path, stop_on=stop_on, rollback=rollback) as flown:
        result = train(**trained)
    at = trained["huge_at"]
    assert f"Training stopped before step {at} was taken" in result["message"]
    assert stopped(flown) == [at]
    assert unchanged(result)


def test_a_healthy_training_is_the_same_with_conditions_and_without(tmp_path: Path) -> None:
    with flying(tmp_path, stop_on=("nonfinite", "loss>1000", "val_loss plateau 5", "throughput-99%")) as flown:
        watched = train()
    alone = train()
    assert all(torch.equal(watched[name], alone[name]) for name in ("weight", "bias"))
    assert stopped(flown) == []


def test_a_validation_loss_that_no_longer_falls_ends_the_training_before_the_next_step(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    with mlflow.start_run(), flying(tmp_path, stop_on="val_loss plateau 3") as flown:
        trained = train(steps=80, validations=True)
    assert "val_loss has not fallen below its best of 0.5 in 3 values" in str(trained["message"])
    assert stopped(flown) == [36]  # best at step 20, three more until step 35
    assert unchanged(trained)
