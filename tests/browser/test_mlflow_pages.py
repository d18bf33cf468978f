"""MLflow's own pages of a run that broke, as its user opens them."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser.chromium import Chromium, find_chromium
from courier.staging import Training
from findings import at_step
from forked.processes import python
from mlflow import MlflowClient

from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity, read_remedies
from mlflow_stability.vocabulary.run import Closing

PROGRAM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: apt-get install chromium"),
]
QUANTITIES = ("adam_rms", "backward_time", "grad_norm", "learning_rate", "loss", "micro_batches", "update_ratio")
SIGNALS = tuple(Signal(quantity) for quantity in QUANTITIES)
TRAINS = """
import torch
import mlflow_stability

mlflow_stability.autolog()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(60):
    inputs = torch.randn(16, 4)
    optimizer.zero_grad()
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
"""
TRAINING_LAYOUT = "?workflowType=machine_learning"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert PROGRAM is not None
    with Chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def page(rest_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the run of a training whose loss turned NaN at step 80; its script ran to its end."""
    client = MlflowClient(rest_server)
    experiment = client.create_experiment("pages of a broken run")
    run_id = client.create_run(experiment, tags={"mlflow.note.content": "My own words."}).info.run_id
    training = Training(tmp_path_factory.mktemp("journals") / "root", rest_server, run_id=run_id)
    now = time.time() - 120
    for step in range(1, 121):
        loss = math.nan if step >= 80 else 2.0 / step
        values = (0.1 + 0.01 * (step % 5), 0.01 * (1 + step % 3), 1.0 / step, 0.001, loss, 1.0, 0.002 / step)
        training.journal.append(StepReading(step, SIGNALS, values, 0, now + step))
        if step == 80:
            message = "loss is NaN at step 80; last finite value 0.0253."
            remedies = read_remedies(["Check the labels.", "Lower the learning rate.", "Clip gradients at 1.0."])
            training.journal.append(
                at_step(80, "nan_detected", Severity.CRITICAL, message, remedies=remedies, time=now)
            )
    training.end(Closing("finished", "", 120))
    assert deliver_session(training.folder).error == ""
    return f"{rest_server}/#/experiments/{experiment}/runs/{run_id}"


def text_of(browser: Chromium) -> str:
    return str(browser.ask("document.body.innerText"))


@pytest.mark.parametrize("width", [390, 1440])
def test_the_overview_says_what_happened_when_and_what_next(browser: Chromium, page: str, width: int) -> None:
    browser.visit(page + TRAINING_LAYOUT, width, "Training stability: broken")
    text = text_of(browser)
    assert text.index("My own words.") < text.index("Training stability: broken") < text.index("Loss is NaN at step 80")
    assert "Check the labels." in text
    assert "Clip gradients" in text
    assert "Lower the learning rate" not in text  # the loss was falling: the rate is ruled out
    assert "120 steps" in text
    assert "stability.verdict" in text
    assert "mlflow.stability" not in text
    assert '{"id"' not in text


def test_the_link_of_the_description_opens_the_report(browser: Chromium, page: str) -> None:
    browser.visit(page + TRAINING_LAYOUT, 1440, "Training stability: broken")
    link = browser.ask("[...document.querySelectorAll('a')].find(each => each.textContent == 'Report').href")
    assert link == f"{page}/artifacts/stability/report.html{TRAINING_LAYOUT}"
    browser.visit(link, 1440, "report.html")
    until = time.monotonic() + 30
    while not browser.ask("document.querySelectorAll('iframe').length"):
        assert time.monotonic() < until, "the artifact page shows no report"
        time.sleep(0.2)


def test_the_main_charts_are_in_the_first_section(browser: Chromium, page: str) -> None:
    browser.visit(f"{page}/model-metrics{TRAINING_LAYOUT}", 1440, "grad_norm")
    text = text_of(browser)
    further = text.index("stability/")
    assert all(0 <= text.find(name) < further for name in ("grad_norm", "learning_rate", "loss", "update_ratio"))
    assert "micro_batches" not in text  # it never changes


def test_the_url_of_the_last_line_opens_the_page_of_the_run(
    browser: Chromium, rest_server: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    ended = subprocess.run(
        [python(), str(script)],
        env={**os.environ, "MLFLOW_TRACKING_URI": rest_server.replace("://", "://me:hunter2@")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert "hunter2" not in ended.stderr
    result = re.search(r" Report: (http://\S+/runs/([0-9a-f]{32})\S*)$", ended.stderr.strip())
    assert result, ended.stderr
    assert "workflowType=machine_learning" in result[1]
    browser.visit(result[1], 1440, "Training stability: healthy")
    assert result[2] in text_of(browser)


def test_runs_are_found_by_their_verdict(browser: Chromium, page: str) -> None:
    runs, _, run_id = page.rpartition("/")
    client = MlflowClient(page.partition("/#/")[0])
    experiment = runs.split("/")[-2]
    (run,) = client.search_runs([experiment], "tags.`stability.verdict` = 'broken'")
    assert run.info.run_id == run_id
    name = run.info.run_name
    for verdict, shown in (("broken", True), ("diverged", False)):
        condition = f"tags.%60stability.verdict%60%20%3D%20'{verdict}'"
        browser.visit(f"{runs}{TRAINING_LAYOUT}&searchFilter={condition}", 1440, "matching run")
        until = time.monotonic() + 20
        while (name in text_of(browser)) != shown:
            assert time.monotonic() < until, text_of(browser)
            time.sleep(0.2)
