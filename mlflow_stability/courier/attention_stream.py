"""Carries the attention maps that lie beside a journal into the run.

In: the folder of a recording, where the training puts maps. Out: a part in `stability/attention/maps` for each step,
for the first steps and then ever more seldom, and for the last. Promised: a part that is sent twice lands on itself;
one round of maps is in memory at a time; a map that cannot be read is left out, and the courier's log says so.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

from mlflow_stability.courier.attention_rounds import Round, RoundReader, Thinning
from mlflow_stability.courier.delivered import Delivered
from mlflow_stability.errors import JournalError, TrackingError
from mlflow_stability.journal.attention_maps import AttentionMapFile, read_attention_map
from mlflow_stability.tracking.attention_parts import MAPS_FOLDER, AttentionPart, write_attention_part
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.tracking.store_trouble import RefusedError
from mlflow_stability.vocabulary.attention_map import AttentionMap

THINNING = Thinning(dense=20, growth=1.1, most=100)
_logger = logging.getLogger("mlflow_stability.courier")


class AttentionStream:
    """The attention maps of one recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        self.done = False
        self.reached = 1 << 62
        """Nothing of the journal waits for maps."""
        self._delivered = delivered
        self._writer = writer
        self._rounds = RoundReader(delivered.folder, "maps", THINNING)
        self._refused = False

    def advance(self, over: bool) -> bool:
        """Send the maps of the next step, where there are any."""
        found = self._rounds.next(over, time.time())
        if found is None:
            self.done = over
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
            with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
                file = Path(room, part.name)
                write_attention_part(file, maps, offset)
                self._writer.upload(file, MAPS_FOLDER)
        except RefusedError as error:
            self._refused = True
            _logger.warning("The attention maps are not delivered: %s", error)
        except OSError as error:
            raise TrackingError(f"Could not write attention maps: {error}") from error


def _read(file: AttentionMapFile) -> AttentionMap | None:
    try:
        return read_attention_map(file.path)
    except JournalError as error:
        _logger.warning("%s", error)
        return None
