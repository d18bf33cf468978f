"""Feed targets with many inputs, in a process that is watched and started again if it hangs or dies."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parents[1]
SECONDS = 10.0
"""CPU time for one input."""
WALL_SECONDS = 90.0
"""Time for one input on a busy machine; a sleeping process uses no CPU time."""
MOST_FAULTS = 50


@dataclass(frozen=True, slots=True)
class Fault:
    """An input that broke a promise."""

    target: str
    number: int
    what: str


@dataclass(slots=True)
class Outcome:
    """Outcome of the inputs of one target."""

    inputs: int = 0
    accepted: int = 0
    """The others were refused as documented."""
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_number: int = 0
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Campaign:
    """Which inputs to draw."""

    inputs: int
    """Of all targets together, by their shares."""
    seed: int = 0
    first: int = 0
    """The number of the first input of each target."""
    only: tuple[str, ...] = ()
    logs: Path | None = None
    """A folder of further real logs."""
    saved: Path | None = None
    """Where inputs that broke a promise are kept."""
    more: str = ""
    """A module with other targets, for tests."""
    seconds: float = SECONDS
    minutes: float = math.inf
    """Minutes after which the campaign ends, and reports what was fed until then."""

    def run(self) -> dict[str, Outcome]:
        """Feed all inputs; returns the outcomes by target."""
        outcomes: dict[str, Outcome] = {}
        done: dict[str, int] = {}
        end = time.monotonic() + 60 * self.minutes
        while True:
            with tempfile.TemporaryDirectory(prefix="fuzz-") as place, _Worker(self, place) as worker:
                ranges = self._left(worker.shares, done)
                if not ranges or sum(len(item.faults) for item in outcomes.values()) >= MOST_FAULTS:
                    return outcomes
                for name in ranges:
                    outcomes.setdefault(name, Outcome())
                worker.start(ranges)
                for target, number, accepted, seconds, fault in worker.results():
                    done[target] = number + 1
                    outcome = outcomes[target]
                    outcome.inputs += 1
                    outcome.accepted += accepted
                    outcome.seconds += seconds
                    if seconds > outcome.slowest:
                        outcome.slowest, outcome.slowest_number = seconds, number
                    if fault:
                        outcome.faults.append(Fault(target, number, fault))
                    if time.monotonic() > end:
                        return outcomes

    def _left(self, shares: Mapping[str, int], done: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        chosen = {name: share for name, share in shares.items() if name in self.only or not self.only}
        whole = sum(chosen.values())
        ends = {name: self.first + max(1, self.inputs * share // whole) for name, share in chosen.items()}
        begins = {name: done.get(name, self.first) for name in chosen}
        return {name: (begins[name], end) for name, end in ends.items() if begins[name] < end}


class _Worker:
    """One process of `fuzz.worker`."""

    def __init__(self, campaign: Campaign, place: str) -> None:
        self._seconds = campaign.seconds
        asked = {
            "place": place,
            "logs": str(campaign.logs or ""),
            "seed": campaign.seed,
            "more": campaign.more,
            "saved": str(campaign.saved or ""),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=TESTS,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
                "PYTHONHASHSEED": "0",
                "OMP_NUM_THREADS": "1",
            },
        )
        self._rest = b""
        self._lines: list[list[Any]] = []
        ready = self._next_line(600.0, cpu=600.0)
        if not isinstance(ready, list):
            self._process.kill()
            raise RuntimeError("The process with the targets did not start; run `python -m fuzz.worker` to see why.")
        self.shares: dict[str, int] = ready[1]

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def start(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Tell it which inputs to feed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ranges).encode() + b"\n")
        self._process.stdin.flush()

    def results(self) -> Iterator[tuple[str, int, bool, float, str]]:
        """Yield target, number, whether it was accepted, seconds and fault of each input, until its end."""
        target, number, began = "", 0, False
        while True:
            line = self._next_line(WALL_SECONDS, self._seconds)
            if isinstance(line, list) and line[0] == "begin":
                target, number, began = line[1], line[2], True
            elif isinstance(line, list):
                began = False
                yield target, number, line[1], line[2], line[3]
            else:
                if began:
                    yield target, number, False, self._seconds, line
                return

    def _next_line(self, wall: float, cpu: float) -> list[Any] | str:
        """Return what it says next; a text where it hangs or has ended."""
        assert self._process.stdout is not None
        began, used = time.monotonic(), -1.0
        while not self._lines:
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                block = os.read(self._process.stdout.fileno(), 1 << 20)
                if not block:
                    return f"died with status {self._process.wait()}"
                *whole, self._rest = (self._rest + block).split(b"\n")
                self._lines = [json.loads(line) for line in whole]
            elif used < 0:
                used = self._cpu_time()
            elif time.monotonic() - began > wall or self._cpu_time() - used > cpu:
                self._process.kill()
                return f"took more than {cpu:g} s of CPU time or {wall:g} s"
        return self._lines.pop(0)

    def _cpu_time(self) -> float:
        with suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0
