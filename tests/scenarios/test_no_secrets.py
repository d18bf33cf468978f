"""A real training with passwords and tokens wherever people put them: none is in a file, a run or on the terminal."""

from __future__ import annotations

import base64
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from architecture.repository import ROOT
from forked.processes import DELIVERY, TRAINING, python
from mlflow import MlflowClient
from servers.alert_services import ChatServer
from servers.mlflow_server import mlflow_server
from servers.ports import free_port

pytestmark = [pytest.mark.scenario, pytest.mark.slow]

SCRIPT = """
import os, shutil, sys, time
from pathlib import Path
import torch
import mlflow_stability

mlflow_stability.autolog(
    alerts=["env:HOOK", "console"],
    mirrors=["tensorboard:runs/", "otel:" + os.environ["COLLECTOR"]],
    rollback=True,
    options=mlflow_stability.Options(exit_wait=60),
)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 151):
    inputs = torch.randn(32, 4)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean() * (1e5 if step == 100 else 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 60:
        time.sleep(3)  # the courier has started the run
        shutil.copytree(".mlflow-stability", "journal as it was", symlinks=True)
        lines = [file.read_bytes().replace(bytes(1), b" ") for file in Path("/proc").glob("[0-9]*/cmdline")]
        Path("processes").write_bytes(b"\\n".join(line for line in lines if b"mlflow_stability" in line))
raise ConnectionError(f"cannot connect to {sys.argv[-1]}")
"""
PLACES = ("user", "password", "token", "tracking token", "aws", "api key", "option", "positional", "form", "database")
PLACES = (*PLACES, "hook password", "hook path", "hook option", "collector", "other hook")
SECRETS = {place: f"XyZ{number:02d}q{place.replace(' ', '')}R7" for number, place in enumerate(PLACES)}
"""A text of its own for each place where a secret may be."""


def arguments() -> list[str]:
    """Words of a command line with secrets."""
    words = [f"--api-key={SECRETS['api key']}", "--hf-token", SECRETS["option"], f"password={SECRETS['positional']}"]
    return [*words, "--note", f"sk-{SECRETS['form']}{SECRETS['form']}", f"postgresql://me:{SECRETS['database']}@db/x"]


@pytest.fixture
def server(template_database: Path, tmp_path: Path) -> Iterator[str]:
    """A server whose files are all below the folder of the test."""
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(template_database, folder / "mlflow.db")
    with sqlite3.connect(folder / "mlflow.db") as connection:
        connection.execute("UPDATE experiments SET artifact_location = 'mlflow-artifacts:/' || experiment_id")
    connection.close()
    with mlflow_server(folder, f"sqlite:///{folder / 'mlflow.db'}") as url:
        yield url


def call(folder: Path, words: list[str], environment: dict[str, str]) -> str:
    """Run a program; return what it printed."""
    values = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [python(DELIVERY if "-m" in words else TRAINING), *words],
        cwd=folder,
        env=values,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return done.stdout + done.stderr


def text_of(file: Path) -> bytes:
    content = file.read_bytes()
    if file.suffix == ".parquet":
        content += str(pq.read_table(file).to_pydict()).encode()
    return content


def leaks(content: bytes) -> list[str]:
    """The places of secrets that are in it, as they are or as addresses and headers write them."""
    both = f"{SECRETS['user']}:{SECRETS['password']}"
    values = {**SECRETS, "basic": base64.b64encode(both.encode()).decode()}
    forms = ((place, form) for place, text in values.items() for form in (text, quote(text), text.lower()))
    return sorted({place for place, form in forms if form.encode() in content})


def test_no_secret_is_in_a_file_or_in_the_run_or_printed(server: str, tmp_path: Path) -> None:
    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    uri = server.replace("//", f"//{SECRETS['user']}:{SECRETS['password']}@") + f"/?token={SECRETS['token']}"
    environment = {
        "MLFLOW_TRACKING_URI": uri.partition("/?")[0],
        "MLFLOW_TRACKING_TOKEN": SECRETS["tracking token"],
        "AWS_SECRET_ACCESS_KEY": SECRETS["aws"],
        "COLLECTOR": f"http://me:{SECRETS['collector']}@127.0.0.1:{free_port()}",
        "MLFLOW_STABILITY_ALERTS": f"slack://{SECRETS['other hook']}/T/B",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    with ChatServer() as hook:
        address = f"json://me:{SECRETS['hook password']}@{hook.address}/{SECRETS['hook path']}"
        environment["HOOK"] = f"{address}?+X-Token={SECRETS['hook option']}"
        printed = {"train": call(folder, ["train.py", *arguments()], environment)}
    own = f"ConnectionError: cannot connect to {arguments()[-1]}\n"  # which Python prints
    assert printed["train"].count(own) == 1
    printed["train"] = printed["train"].replace(own, "")
    assert hook.requests
    printed["hook"] = str([request.body for request in hook.requests])
    assert (folder / "processes").read_bytes().count(b"mlflow_stability.courier") >= 1
    client = MlflowClient(server)
    (run,) = client.search_runs(["0"])
    assert run.data.tags["stability.outcome"].startswith("The process crashed after step 150: ConnectionError: cannot")
    report = ["--log-to-run", "--output", "report.html"]
    commands = {
        "diagnose": ["diagnose", run.info.run_id, *report],
        "compare": ["compare", run.info.run_id, "--output", "comparison.html"],
        "checkpoints": ["checkpoints", run.info.run_id],
        "doctor": ["doctor"],
        "sync": ["sync"],
        "missing": ["diagnose", "0" * 32],
        "away": ["diagnose", run.info.run_id, "--tracking-uri", uri.replace(server[7:], f"127.0.0.1:{free_port()}")],
    }
    for name, words in commands.items():
        printed[name] = call(folder, ["-m", "mlflow_stability", *words], environment)
    assert (folder / "report.html").exists()
    assert (folder / "comparison.html").exists()
    assert {name: leaks(text.encode()) for name, text in printed.items() if leaks(text.encode())} == {}
    files = [file for file in tmp_path.rglob("*") if file.is_file() and not file.is_symlink()]
    assert any("journal as it was" in str(file) for file in files)
    assert {str(file): leaks(text_of(file)) for file in files if leaks(text_of(file))} == {}
