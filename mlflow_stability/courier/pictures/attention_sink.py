"""Deliver attention maps to `stability/data/attention`, one part for each measured step.

Parts are of the first steps, then ever fewer, and of the last step. Guarantees: a part that is sent twice replaces
itself; maps of one step at a time are in memory; unreadable maps are skipped and logged; a map's file is deleted once
every reader has passed it; a new courier continues where the one before was.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from mlflow_stability.courier.progress import Delivered, read_page, write_page
from mlflow_stability.courier.sinks.sink import RunSink
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
_logger = logging.getLogger("mlflow_stability.courier")


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
    is_first: bool
    """Of the recording."""

    @property
    def layers(self) -> int:
        """How many layers attend: of many only some have maps, numbered among all of them, the last one always."""
        return max(len(self.files), *(file.layer_number + 1 for file in self.files))


class RoundReader:
    """Position of one reader of the rounds: `maps` or `pictures`."""

    def __init__(self, recording: Path, name: str, thinning: Thinning) -> None:
        self._recording = recording
        self._name = name
        self._thinning = thinning
        saved = read_page(recording / PAGE).get(name, {})
        self._until: tuple[int, int] = (int(saved.get("attempt", -1)), int(saved.get("step", -1)))
        self._passed = int(saved.get("passed", 0))

    def next(self, over: bool, now: float) -> Round | None:
        """The next round, once all of it is there; None where there is none yet."""
        rounds = self._waiting(over, 2)
        if not rounds:
            return None
        may_be_last = len(rounds) == 1 and not over
        settled = rounds[0].is_kept and now - rounds[0].time >= _SETTLED
        return None if may_be_last and not settled else rounds[0]

    def rest(self) -> list[Round]:
        """All rounds that are left, when the training is over."""
        return self._waiting(over=True)

    def passed(self, passed: Round) -> None:
        """Note that a round was dealt with, and remove the files that all readers have passed."""
        self._until = (passed.attempt, passed.step)
        self._passed += 1
        page = read_page(self._recording / PAGE)
        page[self._name] = {"attempt": passed.attempt, "step": passed.step, "passed": self._passed}
        if write_page(self._recording / PAGE, page) and all(name in page for name in READERS):
            until = min((int(page[name]["attempt"]), int(page[name]["step"])) for name in READERS)
            for file in attention_map_files(self._recording):
                if _place(file) <= until:
                    file.path.unlink(missing_ok=True)

    def _waiting(self, over: bool, most: int | None = None) -> list[Round]:
        files = [file for file in attention_map_files(self._recording) if _place(file) > self._until]
        groups = [tuple(group) for _, group in islice(groupby(files, _place), most)]
        rounds = []
        for number, group in enumerate(groups, self._passed + 1):
            is_last = over and group[-1] is files[-1]
            written = max(_written(file.path) for file in group)
            is_kept = is_last or self._thinning.keeps(number)
            rounds.append(Round(group[0].attempt, group[0].step, group, written, is_kept, number == 1))
        return rounds


def _place(file: AttentionMapFile) -> tuple[int, int]:
    return file.attempt, file.step


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


THINNING = Thinning(dense=20, growth=1.1, most=100)


class AttentionSink(RunSink):
    """The attention maps of one recording."""

    words = "attention maps"

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self._rounds = RoundReader(delivered.folder, "maps", THINNING)
        self._refused = False

    def flush(self, over: bool) -> bool:
        """Send the maps of the next step, where there are any."""
        maps = self._rounds.next(over, time.time())
        if maps is None:
            return self.rest(over)
        if maps.is_kept and not self._refused:
            self._send(maps)
        self._rounds.passed(maps)
        return True

    def _send(self, found: Round) -> None:
        maps = [attention for file in found.files if (attention := _read(file)) is not None]
        if not maps:
            return
        part = AttentionPart(self._number, found.attempt, found.step + self._offset)
        try:
            self.upload(MAPS_FOLDER, part.name, lambda file: write_attention_part(file, maps, self._offset))
        except RefusedError as error:
            self._refused = True
            _logger.warning("Attention maps not delivered: %s", error)


def _read(file: AttentionMapFile) -> AttentionMap | None:
    try:
        return read_attention_map(file.path)
    except JournalError as error:
        _logger.warning("%s", error)
        return None
