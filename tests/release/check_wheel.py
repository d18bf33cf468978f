"""Checks a built wheel: that it holds every file of the package, and works beside its dependencies alone.

python -m build --outdir dist && python tests/release/check_wheel.py dist
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mlflow_stability"
RUN = ROOT / "mlruns_fixtures" / "1" / "loss_spike"
PUBLIC_INTERFACE = Path(__file__).with_name("public_interface.py")


def make_environment(folder: Path) -> Path:
    """Make a virtual environment with the dependencies of this package and no others; return its Python.

    They are links to what is installed here, so that nothing is downloaded, unpacked and compiled again.
    """
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/*/site-packages")
    for distribution in dependencies("mlflow-stability[demo]"):
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / name).is_symlink():  # several distributions may share a folder
                (site / name).symlink_to(str(distribution.locate_file(name)))
    return folder / "bin" / "python"


def dependencies(root: str) -> Iterator[importlib.metadata.Distribution]:
    """Yield what is installed of all that `root` needs, without itself."""
    waiting, seen = [Requirement(root)], set()
    while waiting:
        needed = waiting.pop()
        if str(needed) in seen:
            continue
        seen.add(str(needed))
        distribution = importlib.metadata.distribution(needed.name)
        if len(seen) > 1:
            yield distribution
        for further in map(Requirement, distribution.requires or ()):
            extras = needed.extras or {""}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(further)


def missing_files(wheel: Path) -> set[str]:
    """Return the files of the package that the wheel lacks."""
    files = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*") if file.is_file()}
    return {file for file in files if "__pycache__" not in file} - set(zipfile.ZipFile(wheel).namelist())


def run(command: Sequence[object], folder: Path, exit_code: int = 0) -> str:
    """Run a command in this folder, without the checkout on its path, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != exit_code:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}, not {exit_code}:\n{done.stdout}")
    return done.stdout


def main() -> None:
    (wheel,) = Path(sys.argv[1]).resolve().glob("*.whl")
    if missing := missing_files(wheel):
        sys.exit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = make_environment(folder / "venv")
        pip = (sys.executable, "-m", "pip", "--python", python)
        run([*pip, "install", "--quiet", "--no-deps", wheel], folder)
        print(run([*pip, "check"], folder), end="")
        place = Path(run([python, "-c", "import mlflow_stability as it; print(it.__file__)"], folder).strip())
        assert place.is_relative_to(folder), place
        program = python.with_name("mlflow-stability")
        with ThreadPoolExecutor(2) as pool:
            demo = pool.submit(run, [program, "demo"], folder)
            print(run([python, PUBLIC_INTERFACE], folder), end="")
            report = folder / "report.html"
            print(run([program, "diagnose", RUN, "--output", report], folder, exit_code=1), end="")
            assert "<svg" in report.read_text(encoding="utf-8")
            print(demo.result(), end="")


if __name__ == "__main__":
    main()
