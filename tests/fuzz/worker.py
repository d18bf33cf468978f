"""Process that feeds targets with inputs: `python -m fuzz.worker JSON`, as `fuzz.campaign` starts it.

Each line that it writes is a JSON array: `["begin", target, number]` before an input is read, `["end", accepted,
seconds, fault]` behind it.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from fuzz.confinement import Confinement
from fuzz.target import Drawn, Target

TURNS = 50
MEMORY = 2 * 1024**3
"""Bytes beyond those in use before the first input."""


def targets(logs: Path | None, place: Path, more: str = "") -> dict[str, Target]:
    """Return all targets; `more` is a module with `targets()` of its own."""
    if more:
        by_name: dict[str, Target] = importlib.import_module(more).targets()
        return by_name
    from fuzz.logs import log_targets
    from fuzz.pages import page_targets
    from fuzz.recordings import recording_targets
    from fuzz.stored import stored_targets

    return {**log_targets(logs, place), **recording_targets(place), **page_targets(), **stored_targets(place)}


def random_for(seed: int, target: str, number: int) -> Random:
    """Return the random numbers of one input, which depend on nothing else."""
    return Random(f"{seed}/{target}/{number}")


def feed(
    chosen: Mapping[str, Target], ranges: Mapping[str, tuple[int, int]], seed: int, place: Path, saved: Path | None
) -> Iterator[tuple[str, int]]:
    """Feed the inputs of these numbers; yields what is read next, and writes the outcome."""
    confinement = Confinement(place)
    # Whatever a reader makes for itself is in its folder, too.
    tempfile.tempdir = str(place)
    _limit_memory()
    for name, number in _in_turns(ranges):
        yield name, number
        drawn = chosen[name].draw(random_for(seed, name, number))
        began = time.process_time()
        accepted, fault = _checked(chosen[name], drawn, place, confinement)
        if fault and saved:
            _save(saved, f"{name}-{seed}-{number}", drawn, fault)
        _say("end", accepted, round(time.process_time() - began, 4), fault)


def _in_turns(ranges: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """Yield a part of each target's numbers after the other, so that a run that is cut short has fed all targets."""
    for turn in range(TURNS):
        for name, (first, last) in ranges.items():
            begin, end = (first + (last - first) * part // TURNS for part in (turn, turn + 1))
            yield from ((name, number) for number in range(begin, end))


def _checked(target: Target, drawn: Drawn, place: Path, confinement: Confinement) -> tuple[bool, str]:
    folder = place / "input"
    folder.mkdir(exist_ok=True)
    accepted, fault = False, ""
    try:
        with confinement.active():
            accepted = target.check(drawn, folder)
    except BaseException as error:
        lines = traceback.format_exception(error)
        fault = "".join(lines)[-3000:]
    if confinement.seen:
        fault = f"{'; '.join(confinement.seen)}\n{fault}"
        confinement.seen.clear()
    for left in folder.rglob("*"):
        if left.is_symlink() or left.is_file():
            left.unlink()
    return accepted, fault


def _save(folder: Path, name: str, drawn: Drawn, fault: str) -> None:
    """Keep an input, and beside it what it did."""
    (folder / f"{name}-{drawn.name.replace('/', '-')}").write_bytes(drawn.content)
    (folder / f"{name}.fault.txt").write_text(fault, encoding="utf-8", errors="backslashreplace")


def _limit_memory() -> None:
    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY, in_use + MEMORY))


def _say(*words: object) -> None:
    os.write(_OUT, json.dumps(words).encode() + b"\n")


_OUT = 1


def main() -> None:
    global _OUT
    _OUT = os.dup(1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    asked = json.loads(sys.argv[1])
    place = Path(asked["place"])
    os.chdir(place)
    logs = Path(asked["logs"]) if asked["logs"] else None
    result = targets(logs, place, asked["more"])
    _say("ready", {name: target.share for name, target in result.items()})
    ranges = json.loads(sys.stdin.readline())
    saved = Path(asked["saved"]) if asked["saved"] else None
    for name, number in feed(result, ranges, asked["seed"], place, saved):
        _say("begin", name, number)


if __name__ == "__main__":
    main()
