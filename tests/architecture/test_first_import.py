"""Each sub-package can be the first of the package that a program imports: none needs another one to be there."""

from __future__ import annotations

import subprocess
import sys

import pytest
from architecture.repository import PACKAGE, ROOT

SCRIPT = """
import gc, importlib, os, sys
gc.disable()  # libraries are half a million objects
import matplotlib.axes, mlflow, pandas, pyarrow, rich, scipy, torch  # once, for they take seconds

for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"{name}: {error!r}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
assert not any(each.startswith("mlflow_stability") for each in sys.modules)
"""
"""Imports each in a process of its own, which knows the libraries and nothing of ours."""


@pytest.mark.slow
def test_every_sub_package_can_be_imported_first() -> None:
    folders = sorted(path.parent.relative_to(ROOT) for path in PACKAGE.rglob("__init__.py"))
    names = [".".join(folder.parts) for folder in folders]
    assert "mlflow_stability.courier.sinks" in names
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
