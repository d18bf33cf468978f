"""The parts of the README that are made from the code.

python tests/architecture/readme_parts.py      brings README.md up to date
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

from architecture.repository import ROOT

from mlflow_stability.detectors.catalog import DETECTORS

README = ROOT / "README.md"


def detector_table() -> str:
    """Every judgement: its name, what it sees, what to try first."""
    lines = ["| kind | what it sees | what to try first |", "| --- | --- | --- |"]
    for detector in DETECTORS:
        sees = " ".join(inspect.getdoc(detector).partition("What it sees: ")[2].partition("\n\n")[0].split())
        kind = f"`{detector.kind}`{' (experimental)' if detector.experimental else ''}"
        lines.append(f"| {kind} | {sees[0].upper()}{sees[1:]} | {detector.remedies[0]} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {"detectors": detector_table}


def written(part: str) -> str:
    """What stands in the README."""
    begin, end = _marks(part)
    return README.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def write() -> None:
    """Bring the README up to date."""
    page = README.read_text(encoding="utf-8")
    for part, make in PARTS.items():
        begin, end = _marks(part)
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{make()}\n{end}{rest.partition(end)[2]}"
    README.write_text(page, encoding="utf-8")


def _marks(part: str) -> tuple[str, str]:
    return f"<!-- {part}: begin -->", f"<!-- {part}: end -->"


if __name__ == "__main__":
    write()
