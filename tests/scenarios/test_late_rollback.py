"""A rollback that comes after the finding before it was printed, by a clock that the training is given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from session.output.given_clock import GivenClock
from torch import nn

import mlflow_stability
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

ALIKE = RollbackPolicy(snapshot_every=50, snapshot_share=1.0)
"""Snapshots at the same steps on every machine."""


def printed(
    seconds_a_step: float, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> list[str]:
    """What is printed of a learning rate that is 300 times too high from step 301 on."""
    clock = GivenClock()
    clock.time_output(monkeypatch)
    options = mlflow_stability.Options(journal_dir=folder)
    mlflow_stability.autolog(rollback=ALIKE, offline=True, strict=True, options=options)
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        for step in range(360):
            optimizer.param_groups[0]["lr"] = 3.0 if 300 <= step < 330 else 1e-2
            clock.advance(seconds_a_step)
            inputs = torch.randn(32, 8)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :1].sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        mlflow_stability.autolog(disable=True)
    return [line for line in caplog.messages if not line.startswith(("Recording offline", "Recorded offline"))]


@pytest.mark.parametrize("seconds_a_step", [0.2, 1.0])
def test_a_rollback_after_its_first_sign_was_reported_is_short_and_names_both(
    seconds_a_step: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sign, back = printed(seconds_a_step, tmp_path, monkeypatch, caplog)
    assert sign.startswith("learning_rate_jump: learning rate jumped from 0.01 to 3 at step 301; highest before: 0.01.")
    assert back == (
        "Rolled back from step 314 to step 251 (63 steps lost) after the learning_rate_jump at step 301 and the "
        "divergence at step 314. Learning rate now 0.005."
    )


def test_a_rollback_within_two_seconds_of_its_first_sign_is_one_line_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = printed(0.15, tmp_path, monkeypatch, caplog)
    assert line.startswith("Rolled back from step 314 to step 251 (63 steps lost): loss 1.087e+09 at step 314, ")
    assert " Learning rate now 0.005: it starts at 0.5 times 0.01, its scheduled value of step" in line
