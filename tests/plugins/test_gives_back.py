"""Tests that leave something, in a pytest of their own: each is caught, and the next one finds all as it was."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from plugins.library_state import COMPILER_RECURSION_LIMIT

TESTS = Path(__file__).resolve().parents[1]
LEFT = {
    "recursion_limit": ("sys.setrecursionlimit(1234)", "the recursion limit: was 1000 and is 1234"),
    "environment": ("os.environ['LEFT_BEHIND'] = '1'", "the environment: 'LEFT_BEHIND' was added: '1'"),
    "directory": ("os.chdir('/')", "the working directory: was "),
    "path": ("sys.path.insert(0, '/nowhere')", "sys.path: '/nowhere' was added"),
    "level": ("logging.getLogger('torch').setLevel(7)", "loggers: 'torch' was (30,"),
    "handler": ("logging.root.addHandler(logging.StreamHandler())", "loggers: 'root' was "),
    "captured_warnings": ("logging.captureWarnings(True)", "logging.captureWarnings: was False and is True"),
    "signal": ("signal.signal(signal.SIGTERM, print)", "signal handlers: 'SIGTERM' was "),
    "thread": ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "threads: <Thread(Thread-"),
    "dtype": ("torch.set_default_dtype(torch.float64)", "'get_default_dtype' was torch.float32 and is torch.float64"),
    "device": ("torch.set_default_device('meta')", "'get_default_device' was device(type='cpu') and is"),
    "gradients": ("torch.set_grad_enabled(False)", "'is_grad_enabled' was True and is False"),
    "deterministic": ("torch.use_deterministic_algorithms(True)", "'are_deterministic_algorithms_enabled' was False"),
    "autocast": ("torch.set_autocast_enabled('cpu', True)", "autocast: 'cpu' was (False, torch.bfloat16) and is (True"),
    "module_hook": ("register_module_forward_hook(print)", "torch.nn.modules.module._global_forward_hooks' was {}"),
    "patch": ("torch.autograd.backward = print", "functions of torch: 'torch.autograd.backward' was <function"),
    "numpy": ("numpy.seterr(all='raise')", "numpy's handling of errors: 'divide' was 'warn' and is 'raise'"),
    "session": ("mlflow_stability.autolog(silent=True)", "the session of mlflow_stability: was None and is"),
    "uri": ("mlflow.set_tracking_uri('file:///x')", "MLflow: 'tracking URI' was None and is 'file:///x'"),
}
IMPORTS = """
import logging, os, signal, sys, threading, time, warnings
import mlflow, mlflow.tracking.fluent, mlflow_stability, mlflow_stability.session.autolog, numpy, pytest, torch
from torch.nn.modules.module import register_module_forward_hook
"""
MAY_LEAVE = """
def test_nothing():
    pass

def test_filters_of_warnings_which_pytest_puts_back():
    warnings.simplefilter("ignore")

def test_that_they_were_put_back():
    with pytest.raises(UserWarning):
        warnings.warn("x")

def test_the_limit_of_torchs_compiler():
    import torch._inductor.compile_fx
    sys.setrecursionlimit(2000)

def test_the_threads_of_torchs_compiler():
    from torch._inductor.async_compile import AsyncCompile, config
    with config.patch(compile_threads=2):
        AsyncCompile.pool().submit(print)

def test_that_it_was_put_back():
    assert sys.getrecursionlimit() == 1000

def test_a_draw_of_random_numbers():
    torch.rand(3)

def test_that_the_next_test_draws_the_same():
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert drawn == torch.rand(1)
"""


@pytest.fixture(scope="module")
def pytest_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of tests that leave one thing each, and of some that may leave what they leave."""
    folder = tmp_path_factory.mktemp("leaving")
    lines = [f"def test_{name}():\n    {leave}\n" for name, (leave, _) in LEFT.items()]
    lines.append(MAY_LEAVE)
    (folder / "test_leaving.py").write_text(IMPORTS + "\n".join(lines), encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "plugins.gives_back",
        "-rA",
        "-W",
        "error",
    ]
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    done = subprocess.run(
        [*command, "-W", "ignore::DeprecationWarning", "test_leaving.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        capture_output=True,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_what_a_test_leaves_is_reported_of_that_test_and_no_other(pytest_report: str, name: str) -> None:
    (section,) = re.findall(
        rf"ERROR at teardown of test_{name} _+\n(.*?)(?=\n_+ ERROR|\n=====)", pytest_report, re.DOTALL
    )
    assert LEFT[name][1] in section


@pytest.mark.slow
def test_a_test_that_leaves_nothing_and_what_comes_after_it_pass(pytest_report: str) -> None:
    assert f"{len(LEFT) + MAY_LEAVE.count('def ')} passed, {len(LEFT)} errors" in pytest_report, pytest_report


def test_torchs_compiler_raises_the_recursion_limit_to_what_is_put_back() -> None:
    compiler = find_spec("torch._inductor.compile_fx")
    assert compiler is not None
    assert compiler.origin is not None
    source = Path(compiler.origin).read_text(encoding="utf-8")
    assert f"sys.setrecursionlimit(max(sys.getrecursionlimit(), {COMPILER_RECURSION_LIMIT}))" in source
