"""How long a million observations take to be kept and read back, and how much room.

python tests/benchmarks/journal.py
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from mlflow_stability.journal.follower import read_journal
from mlflow_stability.journal.writer import JournalWriter
from mlflow_stability.vocabulary import Opening, Signal, StepReading

OBSERVATIONS = 1_000_000


def main() -> None:
    for signals in (200, 20, 1):
        folder = Path(tempfile.mkdtemp(prefix="journal-")) / "000-benchmark"
        writer = JournalWriter(folder, Opening("benchmark", 1, 1.0, "here", 1.0))
        names = tuple(Signal(f"signal_{number}") for number in range(signals))
        values = tuple(random.random() for _ in names)
        steps = OBSERVATIONS // signals
        began = time.perf_counter()
        for step in range(steps):
            writer.append(StepReading(step, names, values, 0, time.time()))
        wrote = time.perf_counter() - began
        writer.close()
        began = time.perf_counter()
        read_journal(folder / "journal")
        read = time.perf_counter() - began
        print(
            f"{signals:>4} signals a step: written in {wrote:.2f} s ({wrote / steps * 1e6:.1f} us a step), "
            f"read in {read:.2f} s, {writer.bytes_written / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
