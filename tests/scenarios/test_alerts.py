"""A real training with alerts: a webhook, a function, the console; and no trace of an address."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
from architecture.repository import ROOT
from forked.processes import python
from servers.alert_services import ChatServer
from waiting import wait_until

pytestmark = [pytest.mark.scenario, pytest.mark.slow]

SECRET = "hunter2hunter2"
SCRIPT = """
import torch
import mlflow_stability
from mlflow_stability import Alert

{autolog}
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 121):
    inputs = torch.randn(32, 4)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean() * (1e5 if step in (100, 105, 110) else 1)
    optimizer.zero_grad()
    loss.backward()
    if step in (100, 105, 110):
        for each in model.parameters():
            each.grad *= 1e-6
    optimizer.step()
raise ValueError("boom")
"""
ALERTS = """mlflow_stability.autolog(alerts=["env:HOOK", "console", Alert(
    lambda message: print("CALLED:", message.title), rules=["loss>1000"])])"""


def train(folder: Path, uri: str, words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    values = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": uri, **environment}
    return subprocess.run(
        [python(), *words], cwd=folder, env=values, capture_output=True, text=True, timeout=200, check=False
    )


def traces_of(secret: str, folder: Path) -> list[Path]:
    result = []
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(FileNotFoundError):  # the courier may be removing the journal
                result += [path] * (secret.encode() in path.read_bytes())
    return result


def crash_is_told(server: ChatServer) -> bool:
    return any("crash" in request.body["title"] for request in server.requests)


def test_a_webhook_a_function_and_the_console_tell_of_spikes_and_a_crash(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(autolog=ALERTS))
    with ChatServer() as server:
        done = train(tmp_path, sqlite_uri, ["train.py"], HOOK=f"json://me:{SECRET}@{server.address}/hook")
        wait_until(partial(crash_is_told, server))  # the script waits a few seconds for its last alert
    titles = [request.body["title"] for request in server.requests]
    assert re.fullmatch(r"CRITICAL: (loss spike|\d loss spikes) .*10\d.*", titles[0])
    assert titles[1:] == ["CRITICAL: crash at step 120"]
    assert "ValueError: boom" in server.requests[1].body["message"]
    assert done.returncode == 1
    assert "CALLED: WARNING: loss>1000 (" in done.stdout
    assert all(f"mlflow-stability alert: {title}" in done.stderr for title in titles)
    assert traces_of(SECRET, tmp_path) == []


def test_an_address_on_the_command_line_is_not_in_the_run(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(autolog=""))
    with ChatServer() as server:
        url = f"json://{server.address}/{SECRET}"
        done = train(tmp_path, sqlite_uri, ["-m", "mlflow_stability", "run", "--alerts", url, "train.py"])
        wait_until(partial(crash_is_told, server), values=lambda: done.stderr)
    assert [request.body["title"] for request in server.requests][-1] == "CRITICAL: crash at step 120", done.stderr
    assert traces_of(SECRET, tmp_path) == []
