from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from forked.processes import DELIVERY, python
from waiting import wait_until

import mlflow_stability
from mlflow_stability import load_run
from mlflow_stability.demo.catalog import demo_faults
from mlflow_stability.demo.demo_failure import ALPHABET, encoded, text
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

PACKAGE_ROOT = str(Path(mlflow_stability.__file__).parents[1])

WITHOUT_TORCH = """
import importlib.machinery, sys
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "torch" else super().find_spec(name, path, target)
sys.meta_path = [Without if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
"""
RUN = """from mlflow_stability.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def cli(*arguments: str, program: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        env={**os.environ, "PYTHONPATH": PACKAGE_ROOT, "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def trainings_of(pid: int) -> list[psutil.Process]:
    result = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "mlflow_stability.demo.training" in child.cmdline():
                result.append(child)
    return result


@pytest.mark.slow
@pytest.mark.scenario
def test_the_demo_lets_one_training_die_and_saves_the_other(sqlite_uri: str, tmp_path: Path) -> None:
    shown = cli("-m", "mlflow_stability", "demo", program=python(DELIVERY), MLFLOW_TRACKING_URI=sqlite_uri)
    assert shown.returncode == 0, shown.stderr
    result = " ".join(shown.stdout.split())
    for part in (
        "steps 260 to 279 Learning rate 30 times too high.",
        "No problems.",
        "bare NaN Dead: NaN from step 320.",
        "Rolled back once",
        "1 step skipped",
        "Skipped step 320: non-finite",
        "Likely cause: learning rate jump: The learning rate jumped",
    ):
        assert part in result
    (share,) = re.findall(r"ends ([\d.]+)% (?:above|below) the reference", result)
    assert float(share) < 10
    (run_id,) = re.findall(r'load_run\("(\w+)"\)', shown.stdout)
    frame = load_run(run_id, sqlite_uri)
    assert list(frame["step"]) == list(range(1, 401))
    assert (frame["rollbacks"].max(), frame["skipped_steps"].max()) == (1, 1)
    (final,) = re.findall(r"^autolog\(rollback=True\) +([\d.]+) ", shown.stdout, re.MULTILINE)
    assert float(final) == pytest.approx(frame["loss"].tail(20).median(), rel=0.01)
    assert "Final loss: median of the last 20 steps; in the diagnosis below, of up to 40." in result
    (last,) = re.findall(r"Recovered: .*?; loss fell from [\d.]+ to (\d+\.\d+)", result)
    ((rolled_back, target),) = re.findall(r"step \d+ Rolled back from step (\d+) to step (\d+)", result)
    undone = frame["step"].between(int(target) + 1, int(rolled_back))
    finite = frame["loss"][~undone].replace([float("inf")], float("nan")).dropna()
    medians = [finite.tail(len(finite) // 10 // shorter).median() for shorter in (1, 2, 4)]
    assert any(float(last) == pytest.approx(median, rel=0.001) for median in medians)
    of_the_page = [line for line in shown.stdout.splitlines() if "://" not in line and "report.html" not in line]
    assert max(map(len, of_the_page)) <= 80

    assert f"mlflow ui --backend-store-uri {sqlite_uri}" in shown.stdout
    assert "?workflowType=machine_learning" in shown.stdout
    (report,) = re.findall(r"^  (\S+/stability/report\.html)$", shown.stdout, re.MULTILINE)
    assert "Recovered" in (tmp_path / report).read_text(encoding="utf-8")
    assert f"mlflow-stability diagnose {run_id}" in shown.stdout
    diagnosed = cli(
        "-m", "mlflow_stability", "diagnose", run_id, program=python(DELIVERY), MLFLOW_TRACKING_URI=sqlite_uri
    )
    assert diagnosed.returncode == 1
    assert sorted(path.name for path in (tmp_path / ".mlflow-stability").iterdir()) == [".gitignore", "batches"]
    assert "rm -r .mlflow-stability" in shown.stdout


@pytest.mark.slow
@pytest.mark.scenario
def test_ctrl_c_leaves_no_training_behind(sqlite_uri: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "mlflow_stability", "demo"],
        env={**os.environ, "PYTHONPATH": PACKAGE_ROOT, "MLFLOW_TRACKING_URI": sqlite_uri},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        wait_until(lambda: len(trainings_of(demo.pid)) == 3, 120)
        trainings = trainings_of(demo.pid)
        wait_until(lambda: list((tmp_path / ".mlflow-stability").glob("2*")), 120)
        demo.send_signal(signal.SIGINT)
        out, err = demo.communicate()
    assert demo.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert not [training for training in trainings if training.is_running()]


@pytest.mark.slow
def test_a_training_that_fails_is_named_and_ends_the_demo(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch.optim'] = None\n")
    refused = cli("-m", "mlflow_stability", "demo", PYTHONPATH=os.pathsep.join([str(tmp_path), PACKAGE_ROOT]))
    assert refused.returncode == 2
    assert "ended with exit code 1; see what it said above" in refused.stderr
    assert "torch.optim" in refused.stderr


@pytest.mark.parametrize("steps", [400, 700, 5_000, 100_000])
def test_there_is_a_state_to_go_back_to_before_anything_goes_wrong(steps: int) -> None:
    policy, troubles = RollbackPolicy(), demo_faults(steps)
    kept = (troubles.first - policy.rewind) // policy.snapshot_every * policy.snapshot_every
    assert kept + policy.healthy_after < troubles.first
    assert troubles.last < troubles.empty < steps


@pytest.mark.slow
def test_without_torch_the_demo_says_what_to_install() -> None:
    refused = cli("-c", WITHOUT_TORCH + RUN, "demo")
    assert refused.returncode == 2
    assert "Install the build for this machine (https://pytorch.org/get-started/locally)" in refused.stderr
    assert "In an environment for the demo alone, pip install 'mlflow-stability[demo]'" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("name", ["autolog", "attach", "restore", "RollbackPolicy"])
def test_without_torch_what_needs_it_says_so_in_a_sentence(name: str) -> None:
    refused = cli("-c", f"{WITHOUT_TORCH}import mlflow_stability; mlflow_stability.{name}")
    if name == "RollbackPolicy":  # numbers, without a tensor
        assert refused.returncode == 0
        return
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("ModuleNotFoundError: ")]
    assert line.startswith(f"ModuleNotFoundError: mlflow_stability.{name} needs PyTorch, which is not installed here.")


@pytest.mark.slow
def test_without_torch_the_doctor_finds_the_rest_in_order(sqlite_uri: str) -> None:
    looked = cli("-c", WITHOUT_TORCH + RUN, "doctor", "--tracking-uri", sqlite_uri)
    assert looked.returncode == 1, looked.stderr
    assert "not installed" in looked.stdout


@pytest.mark.slow
def test_with_the_kill_switch_on_the_demo_does_not_train() -> None:
    refused = cli("-m", "mlflow_stability", "demo", MLFLOW_STABILITY_DISABLE="1")
    assert refused.returncode == 2
    assert "nothing would be recorded" in refused.stderr


def test_the_text_to_learn_is_the_same_everywhere() -> None:
    assert text(2_000) == text(2_000)
    assert text(2_000) != text(2_000, seed=1)
    assert "".join(ALPHABET[place] for place in encoded(500)) == text(500)
