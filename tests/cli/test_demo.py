from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mlflow_stability
from mlflow_stability import load_run
from mlflow_stability.demo.text import ALPHABET, encoded, text

PACKAGE_ROOT = str(Path(mlflow_stability.__file__).parents[1])

WITHOUT_TORCH = """
import importlib.machinery, sys
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "torch" else super().find_spec(name, path, target)
sys.meta_path = [Without if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
from mlflow_stability.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": PACKAGE_ROOT, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.scenario
def test_the_demo_trains_and_shows_its_run(sqlite_uri: str, tmp_path: Path) -> None:
    shown = cli("-m", "mlflow_stability", "demo", "--steps", "40", MLFLOW_TRACKING_URI=sqlite_uri)
    assert shown.returncode == 0, shown.stderr
    for part in ("finished after 40 steps", "loss", "gradient norm before clipping", "learning rate", "none: no NaN"):
        assert part in shown.stdout
    assert f"mlflow ui --backend-store-uri {sqlite_uri}" in shown.stdout
    assert "?workflowType=machine_learning" in shown.stdout
    (run_id,) = re.findall(r'load_run\("(\w+)"\)', shown.stdout)
    assert list(load_run(run_id, sqlite_uri)["step"]) == list(range(1, 41))
    of_the_page = [line for line in shown.stdout.splitlines() if "://" not in line]
    assert max(map(len, of_the_page)) <= 80
    assert not (tmp_path / ".mlflow-stability").exists()


def test_without_torch_the_demo_says_what_to_install() -> None:
    refused = cli("-c", WITHOUT_TORCH, "demo")
    assert refused.returncode == 2
    assert "pip install 'mlflow-stability[demo]'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_torch_the_doctor_finds_the_rest_in_order(sqlite_uri: str) -> None:
    looked = cli("-c", WITHOUT_TORCH, "doctor", "--tracking-uri", sqlite_uri)
    assert looked.returncode == 1, looked.stderr
    assert "not installed" in looked.stdout


def test_with_the_kill_switch_on_the_demo_does_not_train() -> None:
    refused = cli("-m", "mlflow_stability", "demo", MLFLOW_STABILITY_DISABLE="1")
    assert refused.returncode == 2
    assert "nothing would be recorded" in refused.stderr


def test_the_text_to_learn_is_the_same_everywhere() -> None:
    assert text(2_000) == text(2_000)
    assert text(2_000) != text(2_000, seed=1)
    assert "".join(ALPHABET[place] for place in encoded(500)) == text(500)
