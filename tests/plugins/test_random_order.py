from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def order_of(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """The tests as they ran, and the seed that was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "plugins.random_order", "-v", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        text=True,
        capture_output=True,
    )
    seed = re.search(r"--random-order=(\d+)", done.stdout)
    lines = [line for line in done.stdout.splitlines() if "PASSED" in line]
    return [found[0] for line in lines if (found := re.search(r"test_\w\.py::test_\d+", line))], seed[1] if seed else ""


def test_files_and_their_tests_are_shuffled_and_a_seed_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    for name in "abcdefgh":
        lines = [f"def test_{number}(): pass" for number in range(8)]
        (tmp_path / f"test_{name}.py").write_text("\n".join(lines), encoding="utf-8")
    plain, no_seed = order_of(tmp_path)
    shuffled, seed = order_of(tmp_path, "--random-order")
    assert no_seed == ""
    assert plain == sorted(plain)
    assert len(plain) == 64
    assert shuffled != plain
    assert sorted(shuffled) == plain
    assert order_of(tmp_path, f"--random-order={seed}") == (shuffled, seed)
    files = [each.partition("::")[0] for each in shuffled]
    assert sum(one != other for one, other in pairwise(files)) == 7  # those of a file together


def test_workers_have_one_order(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    for name in "abcd":
        lines = [f"def test_{number}(): pass" for number in range(4)]
        (tmp_path / f"test_{name}.py").write_text("\n".join(lines), encoding="utf-8")
    names = [f"test_{name}.py::test_{number}" for name in "abcd" for number in range(4)]
    passed, seed = order_of(tmp_path, "--random-order", "-n", "2", "--dist", "loadfile")
    assert sorted(passed) == names
    assert seed
