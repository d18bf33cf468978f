"""A fork runs a script as `python SCRIPT` does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked.processes import Process, loaded, start, torch_modules

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
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    with loaded(path):
        yield path


def started(script: Path, how: str, folder: Path) -> Process:
    environment = {**os.environ, "GIVEN": "a b", "PYTHONPATH": "/of/ours", "PYTHONHASHSEED": "random"}
    return start(script, how, environment=environment, directory=folder)


def plainly(script: Path, how: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIVEN": "a b", "PYTHONPATH": "/of/ours"}
    return subprocess.run(
        [sys.executable, str(script), how], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("how", ["", "thread", "error", "code", "killed"])
def test_it_prints_and_ends_as_a_plain_process_does(script: Path, how: str, tmp_path: Path) -> None:
    process = started(script, how, tmp_path)
    printed, errors = process.communicate(timeout=60)
    wanted = plainly(script, how, tmp_path)
    assert (process.returncode, printed) == (wanted.returncode, wanted.stdout)
    assert errors.splitlines()[-1:] == wanted.stderr.splitlines()[-1:] or how != "error"


def test_two_in_a_row_have_other_hash_seeds_and_no_two_the_same_random_numbers(script: Path, tmp_path: Path) -> None:
    said = [started(script, "", tmp_path).communicate(timeout=60)[1].split() for _ in range(3)]
    hashes, seeds = zip(*said, strict=True)
    assert hashes[0] == hashes[2] != hashes[1]
    assert len(set(seeds)) == 3


def test_one_that_does_not_end_is_waited_for_and_killed(script: Path, tmp_path: Path) -> None:
    process = started(script, "sleeps", tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_what_is_loaded_is_what_the_script_imports_of_torch_at_its_top(tmp_path: Path) -> None:
    script = tmp_path / "other.py"
    script.write_text(
        "import json\nfrom torch import nn\nimport torch.distributed as dist\n\ndef f():\n    import torch.fx\n"
    )
    assert torch_modules(script) == ["torch", "torch.distributed"]
