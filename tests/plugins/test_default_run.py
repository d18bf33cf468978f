"""What runs by default: a pytest of its own, over quick tests, a slow one and a fault one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LEFT_OUT = "Slow tests and fault tests were left out"
FILES = {
    "folder/test_mixed.py": """
import os, pathlib, pytest

def test_quick(tmp_path):
    pathlib.Path(os.environ["SAID"]).write_text(f"{os.environ.get('PYTEST_XDIST_WORKER')} {tmp_path}")

@pytest.mark.slow
def test_slow():
    pass
""",
    "test_trouble.py": """
import pytest

@pytest.mark.fault
def test_fault():
    pass
""",
    "pytest.ini": "[pytest]\nmarkers =\n  slow: x\n  fault: x\n",
}
ALL = {"quick", "slow", "fault"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(project: Path, *arguments: str) -> tuple[set[str], str, str]:
    """The tests that passed, the whole output, and where the quick test ran: its worker, its temporary directory."""
    result = project / "said"
    result.unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "plugins.default_run", "-rA", *arguments],
        cwd=project,
        env={**kept, "PYTHONPATH": str(TESTS), "SAID": str(result), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        text=True,
        capture_output=True,
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    passed = set(re.findall(r"^PASSED \S+::test_(\w+)", done.stdout, re.MULTILINE))
    return passed, done.stdout, result.read_text(encoding="utf-8") if result.exists() else ""


@pytest.mark.slow
def test_alone_and_with_a_folder_it_leaves_slow_and_fault_tests_out_and_says_so(project: Path) -> None:
    for arguments in ((), ("folder",)):
        passed, printed, place = run(project, *arguments)
        assert passed == {"quick"}
        assert LEFT_OUT in printed
        assert place.startswith("gw")  # in a worker


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("folder/test_mixed.py",), {"quick", "slow"}),
        (("folder/test_mixed.py::test_slow",), {"slow"}),
        (("test_trouble.py", "folder/test_mixed.py", "-m", "not slow"), {"fault", "quick"}),
    ],
)
def test_a_file_or_a_test_that_is_named_runs_whatever_its_markers_are_and_in_this_process(
    project: Path, arguments: tuple[str, ...], expected: set[str]
) -> None:
    passed, printed, place = run(project, *arguments)
    assert passed == expected
    assert LEFT_OUT not in printed
    assert place.partition(" ")[0] in ("", "None")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("-m", ""), ALL), (("-m", "fault or slow", "-n", "0"), {"fault", "slow"})],
)
def test_a_selection_that_is_given_wins(project: Path, arguments: tuple[str, ...], expected: set[str]) -> None:
    passed, printed, _ = run(project, *arguments)
    assert passed == expected
    assert LEFT_OUT not in printed


def test_files_with_slow_tests_come_first(project: Path) -> None:
    (project / "test_later.py").write_text("def test_later():\n    pass\n", encoding="utf-8")
    _, printed, _ = run(project, "-m", "", "-n", "0", "-v", "test_trouble.py", "test_later.py", "folder")
    order = re.findall(r"^(\S+)::\S+ PASSED", printed, re.MULTILINE)
    assert list(dict.fromkeys(order)) == ["folder/test_mixed.py", "test_trouble.py", "test_later.py"]


def test_workers_and_temporary_directories_can_be_chosen(project: Path, tmp_path: Path) -> None:
    passed, printed, place = run(project, "-n", "0", "--basetemp", str(tmp_path / "mine"))
    assert passed == {"quick"}
    assert LEFT_OUT in printed
    assert place.startswith(f"None {tmp_path / 'mine'}")
