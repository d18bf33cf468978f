from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from architecture.repository import ROOT
from forked.processes import python
from manual.pages_and_blocks import PAGES, RUN, SHOWN, Block, blocks, prepared, printed, script

CONSOLE = [block for page in PAGES for block in blocks(page) if block.language == "console"]


@pytest.mark.slow
@pytest.mark.scenario
@pytest.mark.parametrize("page", [page for page in PAGES if script(page)], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_from_its_beginning_to_its_end(page: Path, sqlite_uri: str, tmp_path: Path) -> None:
    prepared(tmp_path)
    done = subprocess.run(
        [python(), "-c", script(page)],
        env={**os.environ, "MLFLOW_TRACKING_URI": sqlite_uri, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: f"{block.page.stem}: {block.text.splitlines()[0][2:40]}")
def test_a_command_prints_what_the_manual_says(block: Block, tmp_path: Path) -> None:
    assert printed(block, prepared(tmp_path)) == block.text, (
        "python tests/manual/pages_and_blocks.py brings it up to date"
    )


def test_every_block_says_its_language() -> None:
    assert {block.language for page in PAGES for block in blocks(page)} <= RUN | SHOWN


def test_no_line_of_a_block_is_wider_than_a_terminal() -> None:
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.splitlines():
                assert len(line) <= 100 or "://" in line, f"{page.stem}: {line}"
