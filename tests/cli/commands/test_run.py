from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from architecture.repository import ROOT
from mlflow import MlflowClient

from mlflow_stability.cli.main import run
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.vocabulary.measured.signal import Signal

OURS = [sys.executable, "-m", "mlflow_stability", "run"]
TELLS = """
import gc, pickle, sys
class Kept: pass
print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
main = sys.modules["__main__"]
print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__ and __spec__.name, __doc__, __cached__)
print(type(__loader__).__name__, type(pickle.loads(pickle.dumps(Kept()))).__module__, main.Kept is Kept)
assert "torch" not in sys.modules and "mlflow" not in sys.modules
"""
TRAINS = """
import importlib.util, sys
importlib.util.find_spec("torch")  # as libraries do that can do without it
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
print(type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__, len(sys.meta_path))
if len(sys.argv) > 1:
    def deeper(): raise ValueError("broken by " + sys.argv[1])
    deeper()
"""
SPAWNS = """
import gc, os, sys
import torch
import torch.distributed as d
import torch.multiprocessing as mp

def main(rank, answer):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    d.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
    print(f"{answer}\\n", end="", flush=True)  # one write: two processes share the pipe
    d.barrier()
    del model
    gc.collect()  # torch may deadlock where a DDP outlives its group: pytorch issue 56297
    d.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, (7,), nprocs=2)
"""


def done(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def both(*arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """What a script does when Python runs it, and when we do."""
    return done(sys.executable, *arguments, cwd=cwd), done(*OURS, *arguments, cwd=cwd)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tell.py", "--loss", "x", "-m", "a b"],
        ["part/tell.py"],
        ["-m", "part.tell", "--help"],
        ["-m", "part", "--rollback"],
        ["folder"],
        ["packed.zip", "1"],
    ],
    ids=" ".join,
)
def test_a_script_sees_what_it_sees_when_python_runs_it(arguments: list[str], tmp_path: Path) -> None:
    for file in ("tell.py", "part/tell.py", "part/__init__.py", "part/__main__.py", "folder/__main__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(TELLS if "init" not in file else "")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.writestr("__main__.py", TELLS)
    plain, ours = both(*arguments, cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    "script",
    [
        "def f():\n    1 / 0\nf()",
        "import sys\nsys.exit(7)",
        "raise SystemExit('a sentence')",
        "x = (\n",
        "import json\njson.loads('{')",
        "try:\n    1 / 0\nexcept ArithmeticError:\n    raise KeyError(1)",
        "import threading\nthreading.Thread(target=lambda: print('late')).start()\nraise RuntimeError('x')",
        "import atexit\natexit.register(lambda: print(__name__, Path))\nfrom pathlib import Path",
    ],
)
def test_a_script_ends_as_it_does_when_python_runs_it(script: str, tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text(script)
    plain, ours = both("end.py", cwd=tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_ctrl_c_prints_the_same_traceback_as_python(tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text("def f():\n    raise KeyboardInterrupt\nf()")
    plain, ours = both("end.py", cwd=tmp_path)
    assert ours.stderr == plain.stderr
    assert ours.returncode == 130


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["gone.py"], "The script 'gone.py' cannot be read: No such file or directory."),
        (["-m", "gone.deeper"], "The module 'gone.deeper' cannot be loaded: No module named 'gone'."),
        (["-m", "gone"], "No module named gone that could be run."),
        (["--log-every-n-steps", "0", "x.py"], "log_every_n_steps must be a whole number, at least 1; got 0"),
        (
            ["--guard", "lat", "x.py"],
            "guard must be True, False, 'late' or None; got 'lat' (str). Did you mean 'late'?",
        ),
        (["--extra-tags", "team", "x.py"], "--extra-tags must be NAME=TEXT; got 'team'."),
        (["--rolback", "x.py"], "No such option '--rolback'. (Did you mean one of: '--rollback', "),
        ([], "Missing argument 'SCRIPT'"),
    ],
)
def test_an_invalid_call_ends_with_code_2_and_a_sentence_instead_of_a_traceback(
    typed: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = "import sys\nfrom mlflow_stability.cli.main import run\nsys.exit(run(['run', *sys.argv[1:]]))"
    ended = done(sys.executable, "-c", code, *typed, cwd=tmp_path)
    assert ended.returncode == 2
    assert expected in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_training_is_recorded_with_the_options_and_its_error_is_its_own(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    options = ["--extra-tags", "team=speech", "--log-every-n-steps", "5", "--silent"]
    plain = done(sys.executable, "train.py", "design", cwd=tmp_path)
    ours = done(*OURS, *options, "train.py", "design", cwd=tmp_path, MLFLOW_TRACKING_URI=sqlite_uri)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    (result,) = MlflowClient(tracking_uri=sqlite_uri).search_runs(["0"])
    assert result.info.status == "FAILED"
    assert result.data.tags["team"] == "speech"
    assert "broken by design" in " ".join(result.data.tags.values())
    assert metric_key(Signal("loss")) in result.data.metrics


@pytest.mark.slow
@pytest.mark.parametrize("way", [["--no-python", *OURS], ["-m", "mlflow_stability", "run"]], ids=["program", "module"])
def test_torchrun_starts_the_command_in_every_process(way: list[str], sqlite_uri: str, tmp_path: Path) -> None:
    shared = 'import torch.distributed as d\nd.init_process_group("gloo")\n'
    (tmp_path / "train.py").write_text(TRAINS.replace("model =", f"{shared}model =") + "\nd.destroy_process_group()\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = done(*torchrun, *way, "--silent", "train.py", cwd=tmp_path, MLFLOW_TRACKING_URI=sqlite_uri)
    assert ended.returncode == 0, ended.stderr
    (result,) = MlflowClient(tracking_uri=sqlite_uri).search_runs(["0"])
    assert result.info.status == "FINISHED"


@pytest.mark.slow
def test_processes_that_a_script_spawns_are_recorded_as_one_training(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNS)
    ended = done(*OURS, "--silent", "train.py", cwd=tmp_path, MLFLOW_TRACKING_URI=sqlite_uri)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["7", "7"], "the arguments are the script's own"
    (result,) = MlflowClient(tracking_uri=sqlite_uri).search_runs(["0"])
    assert result.info.status == "FINISHED"
    assert metric_key(Signal("loss")) in result.data.metrics


def test_the_help_has_an_option_for_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--rollback Restore a good state inside your loop when the training diverges" in text
    assert "True, or" not in text
    assert "--stop-on TEXT" in text
