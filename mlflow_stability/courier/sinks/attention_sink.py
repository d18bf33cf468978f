"""Deliver attention maps to `stability/data/attention`, one part for each measured step.

Parts are of the first steps, then ever fewer, and of the last step. Guarantees: a part that is sent twice replaces
itself; maps of one step at a time are in memory; unreadable maps are skipped and logged; a map's file is deleted once
every reader has passed it; a new courier continues where the last one was.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from mlflow_stability.courier.processes import written_at
from mlflow_stability.courier.progress import Delivered, write_page
from mlflow_stability.courier.sinks.sink import RunSink, readable
from mlflow_stability.journal.array_files import AttentionMapFile, attention_map_files, read_attention_map
from mlflow_stability.journal.layout import read_page
from mlflow_stability.tracking.artifacts import MAPS_FOLDER, AttentionPart, write_attention_part
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.tracking.store_errors import RefusedError

PAGE = "attention.json"  # positions of the readers
READERS = ("maps", "pictures")
_SETTLED = 20.0  # seconds after which the newest round is complete
_logger = logging.getLogger("mlflow_stability.courier")


@dataclass(frozen=True, slots=True)
class Thinning:
    """Which rounds are kept, counted from 1."""

    dense: int
    """All of the first rounds up to this one."""
    growth: float
    """Ratio of further ones."""
    most: int
    """Limit, besides the last round."""

    def keeps(self, number: int) -> bool:
        at = kept = min(number, self.dense, self.most)
        while at < number and kept < self.most:
            at = max(at + 1, math.ceil(at * self.growth))
            kept += 1
        return at == number


@dataclass(frozen=True, slots=True)
class Round:
    attempt: int
    step: int
    """As the training counts it."""
    files: tuple[AttentionMapFile, ...]
    time: float
    """When the last of them was written."""
    is_kept: bool
    is_first: bool
    """First round of the recording."""

    @property
    def layers(self) -> int:
        """Number of attention layers; only some of many have maps, but always the last one."""
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
        """Return the next round, once it is complete."""
        rounds = self._waiting(over, 2)
        if not rounds:
            return None
        may_be_last = len(rounds) == 1 and not over
        settled = rounds[0].is_kept and now - rounds[0].time >= _SETTLED
        return None if may_be_last and not settled else rounds[0]

    def rest(self) -> list[Round]:
        return self._waiting(over=True)

    def passed(self, passed: Round) -> None:
        """Note that a round is done, and remove files that all readers have passed."""
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
            written = max(written_at(file.path) for file in group)
            is_kept = is_last or self._thinning.keeps(number)
            rounds.append(Round(group[0].attempt, group[0].step, group, written, is_kept, number == 1))
        return rounds


def _place(file: AttentionMapFile) -> tuple[int, int]:
    return file.attempt, file.step


THINNING = Thinning(dense=20, growth=1.1, most=100)


class AttentionSink(RunSink):
    words = "attention maps"

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self._rounds = RoundReader(delivered.folder, "maps", THINNING)
        self._refused = False

    def flush(self, over: bool) -> bool:
        """Send the maps of the next step, if any."""
        maps = self._rounds.next(over, time.time())
        if maps is None:
            return self.rest(over)
        if maps.is_kept and not self._refused:
            self._send(maps)
        self._rounds.passed(maps)
        return True

    def _send(self, maps_of_step: Round) -> None:
        maps = [m for file in maps_of_step.files if (m := readable(read_attention_map, file.path)) is not None]
        if not maps:
            return
        part = AttentionPart(self._number, maps_of_step.attempt, maps_of_step.step + self._offset)
        try:
            self.upload(MAPS_FOLDER, part.name, lambda file: write_attention_part(file, maps, self._offset))
        except RefusedError as error:
            self._refused = True
            _logger.warning("Attention maps not delivered: %s", error)
