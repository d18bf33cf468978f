from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_stability.cli.main import run

SCRIPT = """
import torch
from torch import nn

def sound():
    torch.manual_seed(0)
    return nn.Linear(32, 4), (torch.randn(16, 32), torch.arange(16) % 4)

def forgets():
    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 4))
    return {"model": model, "optimizer": torch.optim.SGD(model[0].parameters(), lr=0.1)}

def broken():
    model = nn.Linear(4, 4)
    nn.init.constant_(model.bias, float("nan"))
    return model

READY = nn.Linear(8, 8)
strange = {"modle": READY}
three = (1, 2, 3)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_training.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, "own_training", raising=False)


@pytest.mark.parametrize("name", ["own_training", "own_training.py"])
def test_a_model_is_checked_with_all_that_its_factory_gives(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", f"{name}:sound", "-v"]) == 0
    printed = capsys.readouterr().out
    for part in ("Linear: nothing is wrong.", "loss of the batch", "gradient flow", "weight", "4x32"):
        assert part in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert run(["check", f"{name}:forgets"]) == 1
    printed = capsys.readouterr().out
    assert "Sequential: 1 warning." in printed
    assert "WARNING not_in_optimizer" in printed
    assert "→ Add these parameters to an optimizer, or set their requires_grad to False." in printed
    assert "Not checked" in printed
    assert run(["check", f"{name}:READY"]) == 0


def test_programs_read_json_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "own_training:broken", "--output-format", "json"]) == 1
    document = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert document["findings"][0]["check"] == "nonfinite_parameters"
    assert document["findings"][0]["severity"] == "CRITICAL"
    assert document["layers"][1]["nonfinite"] == 4


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("own_training", "Say MODULE:FACTORY, such as train:make_model"),
        ("own_training:nothing", "own_training has no nothing."),
        ("no_such_module_here:make", "No module named 'no_such_module_here' is found from"),
        ("nowhere.py:make", "No such file: nowhere.py."),
        ("own_training:strange", "must give a dict of model, batch, loss, optimizer; got modle."),
        ("own_training:three", "must give the model, or the model and a batch; got 3 values."),
    ],
)
def test_an_invalid_target_ends_with_code_2_and_an_explanation(
    target: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", target]) == 2
    assert expected in capsys.readouterr().err
