"""Trainings in a notebook, in a real kernel: recorded by one cell, read by the next."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from forked.processes import TRAINING, python
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the clients of kernels themselves
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SETUP = """
import warnings
warnings.filterwarnings("ignore", message="IProgress not found")
import mlflow, torch
from torch import nn
import mlflow_stability
mlflow_stability.autolog(strict=True)

def make():
    global model, optimizer
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

def train(steps):
    for step in range(steps):
        inputs = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :1].sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

def runs():
    found = mlflow.search_runs(["0"], output_format="list", order_by=["attributes.start_time"])
    return [(each.info.run_id, each.info.status) for each in found]
"""
Cell = Callable[[str], str]
"""Runs code in the kernel; gives what it printed, or what its last line showed as text."""


@pytest.fixture
def notebook(template_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotebookClient]:
    shutil.copy(template_database, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setattr(sys, "executable", python(TRAINING, "mlflow", "ipykernel.kernelapp"))
    client = NotebookClient(
        nbformat.v4.new_notebook(), timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    with client.setup_kernel():
        yield client


@pytest.fixture
def cell(notebook: NotebookClient) -> Cell:
    def run(code: str) -> str:
        made = nbformat.v4.new_code_cell(code)
        notebook.nb.cells.append(made)
        notebook.execute_cell(made, len(notebook.nb.cells) - 1)
        return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in made.outputs)

    run(SETUP)
    return run


def shown(notebook: NotebookClient) -> dict[str, str]:
    """What the last cell shows, by its type."""
    return dict(notebook.nb.cells[-1].outputs[-1].data)


def test_a_training_in_one_cell_is_diagnosed_in_the_next_and_a_cell_run_again_is_another_run(
    cell: Cell, notebook: NotebookClient
) -> None:
    result = cell("make(); train(400)")
    assert "Recorded 400 steps" in result
    assert "mlflow_stability.diagnose()" in result

    cell("run_id = mlflow_stability.current_session().run_id")
    assert cell("print(run_id == mlflow_stability.diagnose().source)").endswith("True\n")
    assert cell("print(mlflow_stability.diagnose().steps)") == "(1, 400)\n"
    assert cell("print(mlflow_stability.current_session().wait(120), mlflow_stability.flush())") == "True True\n"

    assert cell("mlflow_stability.diagnose()").startswith("<Diagnosis of ")
    assert len(shown(notebook)["text/plain"]) < 300
    assert shown(notebook)["text/html"].startswith("<iframe ")
    assert cell("mlflow_stability.current_session()").startswith("<Session: ")
    assert shown(notebook)["text/html"].startswith("<iframe ")
    cell("mlflow_stability.dashboard(mlflow_stability.current_session().run_id)")
    assert shown(notebook)["image/png"].startswith("iVBOR")

    cell("make(); train(400)")
    assert cell("print(mlflow_stability.diagnose().steps)").endswith("(1, 400)\n")
    status = cell("print([status for _, status in runs()], runs()[1][0] == mlflow_stability.diagnose().source)")
    assert status == "['FINISHED', 'FINISHED'] True\n"
    cell("frame = mlflow_stability.load_run(runs()[1][0])")
    assert cell("print([each for each in frame.columns if 'track' in each])") == "[]\n"
    assert cell("mlflow_stability.compare([each for each, _ in runs()])").startswith("<Comparison of 2 runs")
    assert shown(notebook)["text/html"].startswith("<iframe ")


def test_the_next_cell_can_train_on_in_the_same_run_and_log_a_metric_into_it(cell: Cell) -> None:
    cell("make(); train(100)")
    cell("mlflow_stability.flush()")
    cell("train(50)")
    assert cell("print(mlflow_stability.diagnose().steps, len(runs()))").endswith("(1, 150) 1\n")
    cell("mlflow.log_metric('test_accuracy', 0.9)")
    seen = cell(
        "run = mlflow.get_run(runs()[0][0]); print(run.data.metrics['test_accuracy'], mlflow.active_run(), runs())"
    )
    assert re.match(r"0\.9 None \[\('[0-9a-f]{32}', 'FINISHED'\)\]", seen), seen


def test_a_run_that_the_script_has_opened_stays_open_over_cells(cell: Cell) -> None:
    cell("make(); mine = mlflow.start_run()")
    cell("train(95)")
    assert "True" in cell("print(mlflow_stability.flush())")
    seen = cell("found = mlflow_stability.diagnose(); print(found.steps, found.source == mine.info.run_id)")
    assert seen == "(1, 95) True\n"
    cell("train(10)")
    assert (
        cell("print(mlflow_stability.diagnose().steps, [status for _, status in runs()])") == "(1, 105) ['RUNNING']\n"
    )
    cell("mlflow.end_run()")
    assert cell("print(mlflow_stability.flush(), [status for _, status in runs()])") == "True ['FINISHED']\n"


def test_a_cell_that_ends_in_an_exception_ends_its_run_with_it(cell: Cell) -> None:
    with pytest.raises(CellExecutionError, match="no more data"):
        cell("make(); train(60); raise ValueError('no more data')")
    verdict = cell("print(mlflow_stability.diagnose().verdict)")
    assert "crashed" in verdict.lower()
    assert "no more data" in verdict
    assert cell("print([status for _, status in runs()])") == "['FAILED']\n"


def test_without_a_training_the_run_of_the_store_that_was_started_last_is_diagnosed(cell: Cell) -> None:
    with pytest.raises(CellExecutionError, match="There is no run yet"):
        cell("mlflow_stability.diagnose()")
    cell("with mlflow.start_run() as run: [mlflow.log_metric('loss', 1 / (step + 1), step) for step in range(30)]")
    assert cell("print(mlflow_stability.diagnose().source == run.info.run_id)") == "True\n"
