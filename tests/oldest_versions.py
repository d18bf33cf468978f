"""Runs the core tests against the oldest torch and MLflow that pyproject.toml allows, in an environment of its own.

    python tests/oldest_versions.py                       # both at their oldest
    python tests/oldest_versions.py --torch 2.13.0        # this torch, and the oldest MLflow
    python tests/oldest_versions.py --environment ~/old   # made there, kept, and used again
    python tests/oldest_versions.py -- tests/tracking     # other tests, or options of pytest

Needs Python 3.11 and a package index that has them; `PIP_EXTRA_INDEX_URL` names one with torch for the CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parents[1]
CORE = ("courier", "journal", "probes", "recovery", "scenarios", "session", "tracking")
"""Folders of tests of what talks to torch and MLflow."""
NOT_FOR_TESTS = ("torch", "mypy", "ruff", "pandas-stubs", "types-psutil", "import-linter")
"""Of the extra `test`: another torch, and what only looks at the code."""
LIMITS = ("sqlalchemy<2.1",)
"""What the oldest MLflow needs, and does not say: it imports a pool that SQLAlchemy 2.1 has no more."""


def oldest(requirements: Sequence[str], name: str) -> str:
    """`3.7` of `mlflow>=3.7`."""
    result = [re.fullmatch(rf"{name}>=([\d.]+)", requirement) for requirement in requirements]
    return next(row[1] for row in result if row)


def needed_by_tests(project: dict[str, Any]) -> list[str]:
    """The extra `test` without the torch that is pinned there."""
    named = ((re.split(r"[\[<>=~!; ]", item)[0], item) for item in project["optional-dependencies"]["test"])
    return [item for name, item in named if name not in NOT_FOR_TESTS]


def make(folder: Path, project: dict[str, Any], torch: str, mlflow: str) -> Path:
    """An environment with these versions; gives its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    chosen = [f"torch=={torch}", f"mlflow=={mlflow}", *LIMITS]
    subprocess.run([*install, *chosen, *needed_by_tests(project), "--editable", str(ROOT)], check=True)
    return python


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=oldest(project["optional-dependencies"]["torch"], "torch") + ".*")
    parser.add_argument("--mlflow", default=oldest(project["dependencies"], "mlflow") + ".*")
    parser.add_argument("--environment", type=Path, help="a folder to make it in, and to keep")
    parser.add_argument("tests", nargs="*", help="what pytest is to run instead")
    asked = parser.parse_args()
    core = ["-m", "not slow and not fault", *(str(Path("tests", item)) for item in CORE)]
    with tempfile.TemporaryDirectory() as room:
        python = make(asked.environment or Path(room, "oldest"), project, asked.torch, asked.mlflow)
        shown = "import mlflow, torch; print('torch', torch.__version__, 'mlflow', mlflow.__version__, flush=True)"
        # The package of this checkout, before any other that PYTHONPATH names.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
        for command in (["-c", shown], ["-m", "pytest", "-p", "no:cacheprovider", "-n", "0", *(asked.tests or core)]):
            code = subprocess.run([str(python), *command], cwd=ROOT, env=environment, check=False).returncode
            if code:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
