"""Delivers attention maps to `stability/data/attention`, one part for each measured step.

In: the folder of a recording, where the training writes maps. Out: parts of the first steps, then ever fewer, and of
the last step. Guarantees: a part that is sent twice replaces itself; maps of one step at a time are in memory;
unreadable maps are skipped and logged; a map's file is deleted once every reader has passed it; a new courier
continues where the one before was.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from mlflow_stability.courier.progress import Delivered, read_page, write_page
from mlflow_stability.courier.sinks.sink import upload_file
from mlflow_stability.errors import JournalError
from mlflow_stability.journal.attention_maps import AttentionMapFile, attention_map_files, read_attention_map
from mlflow_stability.tracking.artifacts import MAPS_FOLDER, AttentionPart, write_attention_part
from mlflow_stability.tracking.store.store_errors import RefusedError
from mlflow_stability.tracking.write import RunWriter
from mlflow_stability.vocabulary.measured import AttentionMap

PAGE = "attention.json"
"""How far maps and pictures are."""
READERS = ("maps", "pictures")
_SETTLED = 20.0
"""Seconds after which no further layer of the newest round is to come."""


@dataclass(frozen=True, slots=True)
class Thinning:
    """Which rounds are kept, counted from 1."""

    dense: int
    """So many at first, all of them."""
    growth: float
    """From then on the next one is this many times as far."""
    most: int
    """Never more than these and the last one."""

    def keeps(self, number: int) -> bool:
        """Whether the n-th round is kept."""
        at = kept = min(number, self.dense, self.most)
        while at < number and kept < self.most:
            at = max(at + 1, math.ceil(at * self.growth))
            kept += 1
        return at == number


@dataclass(frozen=True, slots=True)
class Round:
    """The maps of one step."""

    attempt: int
    step: int
    """As the training counts it."""
    files: tuple[AttentionMapFile, ...]
    """By layer."""
    time: float
    """When the last of them was written."""
    is_kept: bool
    is_last: bool
    """Of the training, which is over."""
    is_first: bool = False
    """Of the recording."""

    @property
    def layers(self) -> int:
        """How many layers attend: of many only some have maps, numbered among all of them, the last one always."""
        return max(len(self.files), *(each.layer_number + 1 for each in self.files))


class RoundReader:
    """One who passes all rounds: `maps` or `pictures`."""

    def __init__(self, recording: Path, name: str, thinning: Thinning) -> None:
        self._recording = recording
        self._name = name
        self._thinning = thinning
        said = read_page(recording / PAGE).get(name, {})
        self._until: tuple[int, int] = (int(said.get("attempt", -1)), int(said.get("step", -1)))
        self._passed = int(said.get("passed", 0))

    def next(self, over: bool, now: float) -> Round | None:
        """The next round, once all of it is there; None where there is none yet."""
        waiting = [each for each in attention_map_files(self._recording) if _place(each) > self._until]
        if not waiting:
            return None
        files = next(tuple(group) for _, group in groupby(waiting, _place))
        is_last = len(files) == len(waiting)
        written = max(_written(each.path) for each in files)
        is_kept = self._thinning.keeps(self._passed + 1)
        if is_last and not over and not (is_kept and now - written >= _SETTLED):
            return None  # it may be the last of the training, which is kept
        is_last &= over
        return Round(files[0].attempt, files[0].step, files, written, is_kept or is_last, is_last, self._passed == 0)

    def rest(self) -> list[Round]:
        """All rounds that are left, when the training is over."""
        waiting = [each for each in attention_map_files(self._recording) if _place(each) > self._until]
        rounds = [tuple(group) for _, group in groupby(waiting, _place)]
        found = []
        for number, files in enumerate(rounds, self._passed + 1):
            is_last = number == self._passed + len(rounds)
            written = max(_written(each.path) for each in files)
            is_kept = is_last or self._thinning.keeps(number)
            found.append(Round(files[0].attempt, files[0].step, files, written, is_kept, is_last, number == 1))
        return found

    def passed(self, one: Round) -> None:
        """It is dealt with."""
        self._until = (one.attempt, one.step)
        self._passed += 1
        page = read_page(self._recording / PAGE)
        page[self._name] = {"attempt": one.attempt, "step": one.step, "passed": self._passed}
        if write_page(self._recording / PAGE, page):
            _forget(self._recording, page)


def _forget(recording: Path, page: dict[str, Any]) -> None:
    """Remove the files that everybody has passed."""
    if any(name not in page for name in READERS):
        return
    until = min((int(page[name]["attempt"]), int(page[name]["step"])) for name in READERS)
    for each in attention_map_files(recording):
        if _place(each) <= until:
            each.path.unlink(missing_ok=True)


def _place(file: AttentionMapFile) -> tuple[int, int]:
    return file.attempt, file.step


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


THINNING = Thinning(dense=20, growth=1.1, most=100)
_logger = logging.getLogger("mlflow_stability.courier")


class AttentionSink:
    """The attention maps of one recording."""

    words = "attention maps"

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        self.done = False
        self.hurried = False
        self._delivered = delivered
        self._writer = writer
        self._rounds = RoundReader(delivered.folder, "maps", THINNING)
        self._refused = False

    def flush(self, over: bool) -> bool:
        """Send the maps of the next step, where there are any."""
        found = self._rounds.next(over, time.time())
        if found is None:
            self.done = over
            self.hurried = False
            return False
        if found.is_kept and not self._refused:
            self._send(found)
        self._rounds.passed(found)
        return True

    def _send(self, found: Round) -> None:
        maps = [each for file in found.files if (each := _read(file)) is not None]
        if not maps:
            return
        offset = self._delivered.offset
        part = AttentionPart(self._delivered.number or 0, found.attempt, found.step + offset)
        try:
            upload_file(self._writer, MAPS_FOLDER, part.name, lambda file: write_attention_part(file, maps, offset))
        except RefusedError as error:
            self._refused = True
            _logger.warning("Attention maps not delivered: %s", error)


def _read(file: AttentionMapFile) -> AttentionMap | None:
    try:
        return read_attention_map(file.path)
    except JournalError as error:
        _logger.warning("%s", error)
        return None
