"""Drawn inputs for whatever reads or writes what others made: logs, recordings, names, pages, checkpoints.

None may raise anything undocumented, hang, take much memory, write outside its folder, connect, start a process or run
code of the input.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Table, table_of
from fuzz.campaign import Campaign


def fuzz(
    inputs: int = 100_000,
    seed: int = 0,
    first: int = 0,
    only: tuple[str, ...] = (),
    folder: Path | None = None,
    minutes: float = math.inf,
) -> Iterator[Table]:
    """Feed the same number of inputs to all targets, or to those in `only`; `folder` holds further real logs.

    An input is given by seed, target and number. Those that broke a promise are saved in the system's temporary folder.
    """
    saved = Path(tempfile.mkdtemp(prefix="mlflow-stability-fuzz-"))
    outcomes = Campaign(inputs, seed, first, only, folder, saved, minutes=minutes).run()
    rows = [
        {
            "target": name,
            "inputs": outcome.inputs,
            "accepted": outcome.accepted,
            "faults": len(outcome.faults),
            "CPU s": outcome.seconds,
            "slowest s": outcome.slowest,
            "its number": outcome.slowest_number,
        }
        for name, outcome in outcomes.items()
    ]
    yield table_of("Inputs by target", rows, [f"{sum(outcome.inputs for outcome in outcomes.values()):,} inputs"])
    faults = [fault for outcome in outcomes.values() for fault in outcome.faults]
    if faults:
        again = "--set only={0.target} seed={1} first={0.number} inputs=1"
        shown = [
            {"input": again.format(fault, seed), "fault": fault.what.strip().splitlines()[-1][:200]} for fault in faults
        ]
        yield table_of("Faults", shown, [f"Saved in {saved}"])
    else:
        saved.rmdir()
