"""An environment for the packages of one trainer, over the one that this process runs in.

In: what a trainer needs beyond `[test]`, and a folder outside the checkout. Out: a Python that has it. The environment
sees the packages of this one and has those of the trainer in front of them; torch stays the one that is here, so that
no other build of it is fetched. It is kept, and made again only when what is asked for has changed.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from trainers.script import Trainer

DONE = "installed.txt"
"""The requirements that an environment was made for."""


class NotInstallableError(Exception):
    """Pip refused, with this message."""


def usual_folder() -> Path:
    """Below the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlflow-stability" / "trainers"


def python_for(trainer: Trainer, folder: Path) -> Path:
    """A Python in which this trainer can be imported."""
    if not (trainer.packages or trainer.alone):
        return Path(sys.executable)
    place = _place(trainer, folder)
    python = place / "bin" / "python"
    if not is_installed(trainer, folder):
        shutil.rmtree(place, ignore_errors=True)
        _make(place, python, trainer)
        (place / DONE).write_text(_asked(trainer), encoding="utf-8")
    return python


def is_installed(trainer: Trainer, folder: Path) -> bool:
    """Whether its environment is there, and as it would be made now."""
    done = _place(trainer, folder) / DONE
    return done.exists() and done.read_text(encoding="utf-8") == _asked(trainer)


def _place(trainer: Trainer, folder: Path) -> Path:
    return folder / re.sub(r"\W+", "-", "-".join((*trainer.packages, *trainer.alone)).lower())


def _asked(trainer: Trainer) -> str:
    return "\n".join([sys.version, sys.prefix, *_constraints(), *trainer.packages, "--no-deps", *trainer.alone])


def _make(place: Path, python: Path, trainer: Trainer) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    packages = Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    here = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    lines = "".join(f"import site; site.addsitedir({value!r})\n" for value in here)
    (packages / "the_environment_below.pth").write_text(lines, encoding="utf-8")
    constraints = place / "constraints.txt"
    constraints.write_text("".join(f"{constraint}\n" for constraint in _constraints()), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "-c", str(constraints)]
    if trainer.alone:
        _run([*pip, "--no-deps", *trainer.alone])
    if trainer.packages:
        _run([*pip, *trainer.packages])


def _constraints() -> list[str]:
    """Torch as it is here; MLflow too, for it is what reads the run back."""
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in ("torch", "mlflow")]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise NotInstallableError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    return done.stdout
