"""The code blocks of the manual, and what they need to run.

python tests/manual/pages_and_blocks.py      writes what the commands of the manual print today into its pages
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

from architecture.repository import PACKAGE, ROOT

FOLDER = PACKAGE / "manual"
PAGES = [*sorted(FOLDER.glob("*.md")), ROOT / "README.md"]
RUN = {"python", "console", "json"}
SHOWN = {"text", "bash"}
"""Languages of blocks that are shown: what a program prints, and installation."""


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: Path
    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """All of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    for language, inside in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, language, inside)


def script(page: Path) -> str:
    """The Python of a page, as one script: what a reader has done who read from its beginning."""
    return "\n".join(block.text for block in blocks(page) if block.language == "python")


def prepared(folder: Path) -> Path:
    """A directory in which the manual's code runs: the recorded runs are there."""
    (folder / "mlruns_fixtures").symlink_to(ROOT / "mlruns_fixtures")
    return folder


def printed(block: Block, folder: Path) -> str:
    """The commands of a console block with what they print in 80 columns."""
    result = []
    for command in commands(block):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env={**os.environ, "COLUMNS": "80", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        result += [f"$ {command}", *(line.rstrip() for line in done.stdout.splitlines())]
    return "\n".join(result) + "\n"


def commands(block: Block) -> list[str]:
    """What is typed; a line that ends in a backslash goes on."""
    return re.findall(r"^\$ (.*(?:\\\n.*)*)$", block.text, re.MULTILINE)


def write() -> None:
    """Bring what the commands print up to date."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in blocks(page):
            if block.language == "console":
                with tempfile.TemporaryDirectory() as folder:
                    new = printed(block, prepared(Path(folder)))
                text = text.replace(f"```console\n{block.text}```", f"```console\n{new}```")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
