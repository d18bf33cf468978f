"""Carries pictures of a recording into its run: how healthy it is, and how its layers are.

In: the journal, from its first line, and the tables of layers beside it. Out: PNG files among the run's artifacts,
every ten minutes and at the end. Promised: what draws is loaded when the first picture is drawn, and never before; a
picture that cannot be drawn is told of once in the courier's log and given up, and nothing else waits for it; one that
cannot be sent is not drawn again, but sent when the store is back.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from pathlib import Path

from mlflow_stability.courier.pictures.picture_data import BY_LAYER, PictureData
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.journal.follower import JournalFollower
from mlflow_stability.journal.layer_tables import LayerTableFile, layer_table_files, read_layer_table
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.tracking.artifacts.attention_parts import PictureName, picture_place
from mlflow_stability.tracking.store.store_errors import RefusedError
from mlflow_stability.tracking.write.run_writer import RunWriter

INTERVAL = 600.0
_READ_AT_ONCE = 500
_MOST_TABLES = 10
"""How many tables of layers are read for one picture."""
_logger = logging.getLogger("mlflow_stability.courier")


class FigureStream:
    """The pictures of one recording."""

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        self.done = False
        self.reached = 0
        """The place up to which the journal was heard."""
        self._delivered = delivered
        self._writer = writer
        self._follower = JournalFollower(delivered.folder / JOURNAL)
        self._data = PictureData(delivered.offset)
        self._due_at = time.monotonic() + INTERVAL
        self._to_draw: deque[PictureName] = deque()
        self._drawn: tuple[PictureName, bytes] | None = None
        """A picture that has not arrived yet."""
        self._given_up: set[PictureName] = set()
        self._deaf = False
        """The journal could not be understood."""
        self._ending = False

    def advance(self, over: bool) -> bool:
        """Hear on; draw one picture and send it, where it is time to. `over`: hear the rest, and draw all of them.

        The end of training waits for the last pictures: say `over` when everything else has arrived.
        """
        more = not self._deaf and self._read()
        if not more and ((over and not self._ending) or time.monotonic() >= self._due_at):
            self._to_draw = deque(self._pictures())
            self._ending = over
            self._due_at = time.monotonic() + INTERVAL
        if not more and self._to_draw and self._drawn is None:
            self._draw(self._to_draw.popleft())
        self._send()
        self.done = self._ending and not self._to_draw
        return more or bool(self._to_draw)

    def _read(self) -> bool:
        try:
            entries = self._follower.read(_READ_AT_ONCE)
            for entry in entries:
                self._data.hear(entry.record)
                self.reached = entry.end
        except Exception as error:  # whatever it is, it must not hold the delivery up
            self._deaf = True
            self._note(f"Pictures of recording {self._delivered.recording} not drawn", error)
            return False
        return len(entries) >= _READ_AT_ONCE

    def _pictures(self) -> list[PictureName]:
        """Those for which there is something to draw."""
        if self._deaf or not self._data.readings:
            return []
        layers = [name for name in BY_LAYER if self._data.has_layers(name)]
        histogram: list[PictureName] = ["gradient_histogram"] if self._histograms() else []
        found: list[PictureName] = ["dashboard", *layers, *histogram]
        return [name for name in found if name not in self._given_up]

    def _draw(self, name: PictureName) -> None:
        try:
            self._drawn = (name, self._png(name))
        except Exception as error:  # likewise
            self._give_up(name, error)

    def _png(self, name: PictureName) -> bytes:
        """The picture; the first one loads matplotlib."""
        from mlflow_stability.figures.layers.histogram_ridge import histogram_ridges
        from mlflow_stability.figures.layers.layer_heatmap import layer_heatmap
        from mlflow_stability.figures.run_page.dashboard import dashboard
        from mlflow_stability.figures.style import png

        run_id = self._writer.run_id
        if name == "dashboard":
            return png(dashboard(self._data.board(run_id)))
        if name == "gradient_histogram":
            files = self._histograms()
            chosen = files[-1 :: -max(1, len(files) // _MOST_TABLES)][:_MOST_TABLES]  # backwards, the newest always
            tables = [read_layer_table(each.path) for each in reversed(chosen)]
            return png(histogram_ridges(tables, self._data.subtitle(run_id)))
        return png(layer_heatmap(self._data.grid(name), self._data.subtitle(run_id)))

    def _histograms(self) -> list[LayerTableFile]:
        files = layer_table_files(self._delivered.folder)
        return [each for each in files if each.what == "gradient" and each.has_histograms]

    def _send(self) -> None:
        if self._drawn is None:
            return
        name, content = self._drawn
        folder, file_name = picture_place(name, self._delivered.number or 0)
        try:
            with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
                file = Path(room, file_name)
                file.write_bytes(content)
                self._writer.upload(file, folder)
        except (OSError, RefusedError) as error:
            self._give_up(name, error)
        self._drawn = None

    def _give_up(self, name: PictureName, error: Exception) -> None:
        self._given_up.add(name)
        self._note(f"Picture {name}.png not drawn", error)

    @staticmethod
    def _note(what: str, error: Exception) -> None:
        _logger.warning("%s: %s, %s. Everything else is delivered.", what, type(error).__name__, error)
