"""Every example runs unchanged in an empty directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from architecture.repository import ROOT
from forked.processes import python
from waiting import wait_until

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_examples_are_numbered_in_the_order_in_which_to_read_them() -> None:
    assert [int(path.name[:2]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert f"python examples/{example.name}" in text


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_leaves_only_the_store_and_batches_of_spikes(
    example: Path, sqlite_uri: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [python(), str(example)],
        env={**os.environ, "MLFLOW_TRACKING_URI": sqlite_uri, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr
    # The courier removes the journal when the run's status is right, for which it waits for the end of the script.
    wait_until(lambda: left_in(tmp_path) <= {"store", ".mlflow-stability/batches", ".mlflow-stability/.gitignore"})
    assert "store" in left_in(tmp_path)


def left_in(folder: Path) -> set[str]:
    """What lies there, and what lies in our own folder there."""
    ours = folder / ".mlflow-stability"
    kept = {f"{ours.name}/{path.name}" for path in ours.iterdir()} if ours.is_dir() else set()
    return {path.name for path in folder.iterdir() if path != ours} | kept
