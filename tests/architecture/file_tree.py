"""The file tree of the README, drawn from the disk: behind each file the first sentence of what it says of itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 96

# Files that cannot speak for themselves, and folders of which the README shows no single files.
SAID = {
    ".ci/run": "installs into a fresh environment and runs everything that must hold",
    ".importlinter": "the layers as contracts",
    "LICENSE": "Apache 2.0",
    "README.md": "this page",
    "mlflow_stability/README.md": "the map of the rooms",
    "mlruns_fixtures": "small recorded runs, each with the verdict that it must get",
    "mlflow_stability/py.typed": "the annotations are part of the package",
    "pyproject.toml": "dependencies, each with its reason; settings of the tools",
    "tests/analysis": "reading a run back",
    "tests/architecture": "layers, loading, sizes, names, and that these pages are true",
    "tests/benchmarks": "what things cost and how right they are, printed",
    "tests/browser": "the HTML page in a real browser",
    "tests/cli": "every command and its exit codes",
    "tests/courier": "delivery, with a courier that is killed and a server that is away",
    "tests/detectors": "judgements; what was judged live is found again",
    "tests/diagnosis": "conclusions, and false alarms on what is healthy",
    "tests/distributed": "several processes that train together",
    "tests/examples": "every example runs",
    "tests/figures": "pictures, of one point and of a million",
    "tests/faults": "what really kills, fills or blocks a training",
    "tests/importers": "logs of every kind, and what is odd about them",
    "tests/journal": "the format, at every byte",
    "tests/plugins": "where the minutes of a test run went",
    "tests/probes": "what is measured, against what was computed by hand",
    "tests/recordings": "small trainings with one thing wrong, recorded and diagnosed",
    "tests/recovery": "steps that are not taken, states that are gone back to, kills in between",
    "tests/reports": "every form of a report, with hostile names in it",
    "tests/scenarios": "loops, optimizers, scalers, trainers; and that watching changes nothing",
    "tests/servers": "a real MLflow server, and one that can be told to fail",
    "tests/session": "autolog, attach, and how they end",
    "tests/tracking": "keys, thinning, record files, runs",
    "tests/vocabulary": "the nouns",
    "tests/zoo": "trainings that fail, each with its healthy twin",
    "tests/conftest.py": "a clean place for every test",
}
UNSHOWN = {".gitignore"}


def file_tree() -> str:
    """The tree, one line a file."""
    lines: list[tuple[str, str]] = []
    _draw(ROOT, "", lines)
    width = max(len(name) for name, _ in lines) + 2
    return "\n".join(f"{name:<{width}}# {said}" if said else name for name, said in lines)


def _draw(folder: Path, indent: str, lines: list[tuple[str, str]]) -> None:
    shown = [path for path in sorted(folder.iterdir(), key=_order) if _belongs(path)]
    for path in shown:
        branch, further = ("└── ", "    ") if path == shown[-1] else ("├── ", "│   ")
        name = str(path.relative_to(ROOT))
        whole = path.is_dir() and name not in SAID
        lines.append((f"{indent}{branch}{path.name}{'/' if path.is_dir() else ''}", _says(path, name)))
        if whole:
            _draw(path, indent + further, lines)


def _belongs(path: Path) -> bool:
    patterns = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()]
    silent = path.name == "__init__.py" and path.parent.name != "mlflow_stability"
    empty = path.is_dir() and not any(each.is_file() and _belongs(each) for each in path.rglob("*"))
    unwanted = path.name == ".git" or path.name in UNSHOWN or any(path.match(pattern) for pattern in patterns)
    return not (silent or unwanted or empty)


def _order(path: Path) -> tuple[bool, bool, str]:
    return (not path.name.startswith("."), path.is_file(), path.name)


def _says(path: Path, name: str) -> str:
    if name in SAID:
        return SAID[name]
    source = path / "__init__.py" if path.is_dir() else path
    if source.suffix != ".py" or not source.is_file():
        return ""
    said = " ".join((ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[a-z`)])\. |\.$", said)[0]
    if len(sentence) > LONGEST:
        sentence = re.split(r"[:;,] ", sentence)[0]
    return sentence
