"""Real trainings, and every line that they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from forked.processes import python

pytestmark = [pytest.mark.scenario, pytest.mark.slow]

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
import mlflow_stability
from mlflow_stability.session import training_output

trouble = sys.argv[1]
training_output.HELD_SECONDS = 60.0  # a busy machine takes longer than usual from a finding to the rollback
mlflow_stability.autolog(rollback=trouble == "rollback", silent="silent" in sys.argv)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
for step in range(700 if trouble == "rollback" else 400):  # the loss has come down again at the end
    if trouble in ("rollback", "divergence"):
        optimizer.param_groups[0]["lr"] = 3.0 if 300 <= step < 330 else 1e-2
    inputs = torch.randn(32, 8)
    if trouble == "nan" and step == 200:
        inputs[3, 2] = float("nan")
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1].nan_to_num().sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if trouble == "interrupted" and step == 250:
        os.kill(os.getpid(), signal.SIGINT)
"""
PREFIX = "mlflow-stability: "
BEGINNING = ("Recording ", "The run is ")


@pytest.fixture(autouse=True)
def database(template_database: Path, tmp_path: Path) -> None:
    shutil.copy(template_database, tmp_path / "mlflow.db")


def printed(folder: Path, *arguments: str) -> list[str]:
    """Our lines; there is nothing else of ours."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [python(), str(script), *arguments],
        cwd=folder,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    ours = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    if "interrupted" in arguments:
        assert done.returncode in (1, 130, -2), done.stderr
        assert "KeyboardInterrupt" in lines
    else:
        assert done.returncode == 0, done.stderr
        assert len(ours) == len(lines), done.stderr
    return ours


def last_line(lines: list[str]) -> str:
    """How the training went; where it is recorded is printed once, as soon as that is known, or not at all."""
    recorded = [line for line in lines if line.startswith(BEGINNING)]
    shown = r"[\w-]+: `mlflow ui --backend-store-uri \S+` shows it\."
    early = r"Recording into \S+/mlflow\.db; the run is being created\."
    assert re.fullmatch(rf"(Recording run {shown}|{early}(\nThe run is {shown})?)?", "\n".join(recorded))
    assert lines[: len(recorded[:1])] == recorded[:1], "it comes before anything that was found"
    end = re.fullmatch(r"(.*) Report: `mlflow-stability open [0-9a-f]{32}`", lines[-1])
    assert end, lines
    return end[1]


def findings(lines: list[str]) -> list[str]:
    return [line for line in lines[:-1] if not line.startswith(BEGINNING)]


def test_a_healthy_training_prints_where_it_is_recorded_and_how_it_went(tmp_path: Path) -> None:
    lines = printed(tmp_path, "none")
    verdict = last_line(lines)
    assert verdict.startswith("Healthy: ")
    assert findings(lines) == []


def test_a_rollback_is_one_line_with_all_that_led_to_it(tmp_path: Path) -> None:
    lines = printed(tmp_path, "rollback")
    verdict = last_line(lines)
    (back,) = findings(lines)
    result = re.match(r"Rolled back from step (\d+) to step (\d+) \((\d+) steps lost\): loss .*", back)
    assert result
    assert int(result[1]) - int(result[2]) == int(result[3])
    assert "Learning rate now 0.005: it starts at 0.5 times 0.01, its scheduled value of step" in back
    assert verdict.startswith("Recovered: rolled back to step ")
    assert "Likely cause: the learning rate jumped from 0.01 to 3 at step 301" in verdict


def test_a_divergence_that_goes_on_is_reported_as_it_gets_worse(tmp_path: Path) -> None:
    lines = printed(tmp_path, "divergence")
    verdict = last_line(lines)
    kinds = [line.split(": ")[0] for line in findings(lines)]
    assert len(kinds) <= 3
    assert len(set(kinds)) == len(kinds)
    assert verdict.startswith("Broken: ")


def test_a_nan_is_reported_once_and_explained_at_the_end(tmp_path: Path) -> None:
    lines = printed(tmp_path, "nan")
    verdict = last_line(lines)
    assert [line.split(": ")[0] for line in findings(lines)] == ["nan_detected"]
    assert "Cause: the batch itself was non-finite" in verdict


def test_after_ctrl_c_there_is_one_line_about_it(tmp_path: Path) -> None:
    lines = printed(tmp_path, "interrupted")
    verdict = last_line(lines)
    assert verdict.startswith("Interrupted: ")
    assert findings(lines) == []


def test_a_silent_training_prints_nothing_at_all(tmp_path: Path) -> None:
    assert printed(tmp_path, "rollback", "silent") == []
