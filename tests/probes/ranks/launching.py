"""Starts the scripts of this folder as several processes, as torchrun does, and reads what they recorded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from forked.processes import start
from servers.ports import free_port

import mlflow_stability
from mlflow_stability.journal.journal import read_journal
from mlflow_stability.vocabulary.measured.signal import StepReading

HERE = Path(__file__).parent
PACKAGE = Path(mlflow_stability.__file__).parent.parent


@dataclass(frozen=True)
class Ended:
    """One process at its end."""

    code: int
    printed: str
    errors: str


def launch(processes: int, script: str, *arguments: str, seconds: float = 250.0) -> list[Ended]:
    """All processes at their ends; those that take longer are killed, and the test fails."""
    port = str(free_port())
    together = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        start(
            HERE / script,
            *arguments,
            environment={**os.environ, "PYTHONPATH": str(PACKAGE), **together, "RANK": str(rank)},
        )
        for rank in range(processes)
    ]
    try:
        outputs = [item.communicate(timeout=seconds) for item in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [Ended(process.wait(), *texts) for process, texts in zip(started, outputs, strict=True)]


def recorded(journals: Path) -> dict[int, dict[str, float]]:
    """What was recorded of each step."""
    rows: dict[int, dict[str, float]] = {}
    for journal in journals.glob("*/*/journal"):
        for record in read_journal(journal):
            if isinstance(record, StepReading):
                values = zip(map(str, record.signals), record.values, strict=True)
                rows.setdefault(record.step, {}).update(values)
    return rows
