"""A fork runs a script as `python SCRIPT` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from forked.fork_server import LINK
from forked.processes import DELIVERY, TRAINING, ForkedProcess, ForkServers, Process, large_modules, python, start
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="forks of a process with torch")]
SCRIPT = """
import atexit, os, signal, sys, threading, time
import torch

how = sys.argv[1]
atexit.register(lambda: print("at the end", flush=True))
print(__name__, __file__ == sys.argv[0], sys.argv[1:], os.environ["GIVEN"], os.getcwd(), sys.path[0], sys.path[1])
print(sys.modules["__main__"].__dict__ is globals(), sys.orig_argv[1:] == sys.argv)
print(hash("a word"), torch.initial_seed(), file=sys.stderr)
if how == "thread":
    threading.Thread(target=lambda: (time.sleep(0.3), print("a thread ended"))).start()
if how == "error":
    raise ValueError("as it should")
if how == "code":
    sys.exit(3)
if how == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "sleeps":
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    return path


def started(script: Path, how: str, folder: Path) -> Process:
    environment = {**os.environ, "GIVEN": "a b", "PYTHONPATH": "/of/ours", "PYTHONHASHSEED": "random"}
    return start(script, how, environment=environment, directory=folder)


def plainly(*command: str, folder: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIVEN": "a b", "PYTHONPATH": "/of/ours"}
    return subprocess.run([python, *command], env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["", "error", "killed"])
def test_it_prints_and_ends_as_a_plain_process_does(script: Path, how: str, tmp_path: Path) -> None:
    process = started(script, how, tmp_path)
    printed, errors = process.communicate(timeout=60)
    wanted = plainly(str(script), how, folder=tmp_path)
    assert (process.returncode, printed) == (wanted.returncode, wanted.stdout)
    assert errors.splitlines()[-1:] == wanted.stderr.splitlines()[-1:] or how != "error"


def test_two_in_a_row_have_other_hash_seeds_and_no_two_the_same_random_numbers(script: Path, tmp_path: Path) -> None:
    result = [started(script, "", tmp_path).communicate(timeout=60)[1].split() for _ in range(3)]
    hashes, seeds = zip(*result, strict=True)
    assert hashes[0] == hashes[2] != hashes[1]
    assert len(set(seeds)) == 3


def test_one_that_does_not_end_is_waited_for_and_killed(script: Path, tmp_path: Path) -> None:
    process = started(script, "sleeps", tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    "command",
    [("-c", "import sys, os; print(__name__, sys.argv, sys.path[:3], sys.orig_argv[1:])", "x"), ("-m", "shown", "x")],
)
def test_code_and_modules_run_as_plain_ones(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text("import sys\nprint(__name__, __file__, sys.argv, sys.path[:2], __spec__.name)")
    forked = plainly(*command, folder=tmp_path, python=python())
    plain = plainly(*command, folder=tmp_path)
    assert (forked.returncode, forked.stdout) == (plain.returncode, plain.stdout)
    assert plain.stdout


def test_a_variable_that_was_set_since_does_not_keep_a_server_with_more_modules_from_starting(
    fork_servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_servers.of(TRAINING).connect().close()
    monkeypatch.setenv("MLFLOW_OF_AN_EARLIER_TEST", "1")
    server = fork_servers.of(TRAINING, ("torch.distributed",))
    assert server.start(["-c", "pass"], server.environment, str(tmp_path), {}).wait(60) == 0


def test_a_program_with_other_settings_is_not_forked(tmp_path: Path) -> None:
    code = "import sys; print('torch' in sys.modules)"
    for warnings, is_forked in (("", True), ("error", False)):
        environment = {**os.environ, "PYTHONWARNINGS": warnings}
        finished = subprocess.run([python(), "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert finished.stdout == f"{is_forked}\n"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 7), (signal.SIGKILL, -9)]
)
def test_signals_reach_a_program(number: signal.Signals, code: int, tmp_path: Path) -> None:
    text = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));"
        "print(os.getpid(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [python(), "-c", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdout is not None
        inside = psutil.Process(int(program.stdout.readline()))
        assert inside.pid != program.pid
        program.send_signal(number)
        assert program.wait(60) == code
    assert psutil.wait_procs([inside], timeout=10)[1] == []


def test_a_pool_of_spawned_processes_works_within_a_program(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(
        "import multiprocessing, sys\n"
        "def loaded(_): return 'torch' in sys.modules\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool: print(pool.map(loaded, [1, 2]))\n"
    )
    assert plainly("pool.py", folder=tmp_path, python=python()).stdout == "[True, True]\n"


def test_the_process_of_a_caller_that_has_gone_is_ended(tmp_path: Path) -> None:
    process = start("-c", "import time; time.sleep(600)", environment=dict(os.environ))
    lives = psutil.Process(process.pid)
    wait_until(lambda: lives.cmdline()[1:] == ["-c", "import", "time;", "time.sleep(600)"])
    assert isinstance(process, ForkedProcess)
    process.connection.close()
    for file in process.files:
        file.close()
    psutil.wait_procs([lives], timeout=10)
    assert not lives.is_running()


def test_a_forked_courier_delivers_outlives_its_training_and_is_no_child_of_it(
    sqlite_uri: str, fork_servers: ForkServers, tmp_path: Path
) -> None:
    code = "import os; print(os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), os.environ['GIVEN'])"
    launched = subprocess.run(
        [sys.executable, "-I", "-S", "-c", fork_servers, sys.executable, "-c", code],
        env={**os.environ, "GIVEN": "a b"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    server, *result = launched.stdout.split()
    assert int(server) not in (os.getpid(), 1)
    assert result == ["True", str(tmp_path), "a", "b"]


def test_large_packages_that_a_program_imports_at_its_top_are_imported_before() -> None:
    text = "import json\nfrom torch import nn\nimport torch.distributed as dist\n\ndef f():\n    import torch.fx\n"
    assert large_modules(text) == ["torch", "torch.distributed"]


@pytest.mark.parametrize("module", [LINK, *TRAINING, *DELIVERY])
def test_modules_that_servers_name_exist(module: str) -> None:
    assert find_spec(module) is not None
