"""Carries pictures of a recording into its run: how healthy it is, and how its layers are.

In: all records, and the tables of layers beside it. Out: PNG files among the run's artifacts,
every ten minutes and at the end. Guarantees: what draws is loaded when the first picture is drawn, and never before; a
picture that cannot be drawn is told of once in the courier's log and given up, and nothing else waits for it; one that
cannot be sent is not drawn again, but sent when the store is back.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.courier.pictures.picture_data import PictureData
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.sink import Sink
from mlflow_stability.figures.layers import LayerGrid
from mlflow_stability.figures.run_figure import RunFigure, run_figures
from mlflow_stability.figures.run_page import DashboardData
from mlflow_stability.journal.layer_tables import LayerTableFile, layer_table_files, read_layer_table
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.artifacts import picture_name
from mlflow_stability.tracking.store.store_errors import RefusedError
from mlflow_stability.tracking.write import RunWriter
from mlflow_stability.vocabulary.measured import LayerTable

INTERVAL = 600.0
_logger = logging.getLogger("mlflow_stability.courier")


@dataclass(frozen=True, slots=True)
class _Known:
    """What figures ask of a recording, in the words of `FigureData`."""

    data: PictureData
    run_id: str
    folder: Path

    @property
    def subtitle(self) -> str:
        return self.data.subtitle(self.run_id)

    def board(self) -> DashboardData:
        return self.data.board(self.run_id)

    def has_layers(self, quantity: str) -> bool:
        return self.data.has_layers(quantity)

    def grid(self, quantity: str) -> LayerGrid:
        return self.data.grid(quantity)

    def has_histograms(self, what: str) -> bool:
        return bool(self._tables(what))

    def tables(self, what: str, most: int) -> list[LayerTable]:
        files = self._tables(what)
        chosen = files[-1 :: -max(1, len(files) // most)][:most]  # backwards, the newest always
        return [read_layer_table(each.path) for each in reversed(chosen)]

    def _tables(self, what: str) -> list[LayerTableFile]:
        files = layer_table_files(self.folder)
        return [each for each in files if each.what == what and each.has_histograms]


class FigureSink(Sink):
    """The pictures of one recording."""

    words = "pictures"

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__()
        self.done = False
        self.hurried = False
        self._delivered = delivered
        self._writer = writer
        self._data = PictureData(delivered.offset)
        self._due_at = time.monotonic() + INTERVAL
        self._to_draw: deque[RunFigure] = deque()
        self._drawn: tuple[RunFigure, bytes] | None = None
        """A picture that has not arrived yet."""
        self._given_up: set[str] = set()
        self._off = False
        """A record could not be taken: nothing is drawn."""
        self._ending = False

    def take(self, record: Record) -> None:
        """Keep what pictures are drawn from."""
        if self._off:
            return
        try:
            self._data.take(record)
        except Exception as error:  # whatever it is, it must not hold the delivery up
            self._off = True
            self._note(f"Pictures of recording {self._delivered.recording} not drawn", error)

    def flush(self, over: bool) -> bool:
        """Draw one picture and send it, where it is time to. `over`: draw all of them.

        The end of training waits for the last pictures: say `over` when everything else has arrived.
        """
        more = self.more and not self._off
        if not more and ((over and not self._ending) or time.monotonic() >= self._due_at):
            self._to_draw = deque(self._pictures())
            self._ending = over
            self._due_at = time.monotonic() + INTERVAL
        if not more and self._to_draw and self._drawn is None:
            self._draw(self._to_draw.popleft())
        self._send()
        self.done = self._ending and not self._to_draw
        return bool(self._to_draw)

    def _pictures(self) -> list[RunFigure]:
        """Those for which there is something to draw."""
        if self._off or not self._data.readings:
            return []
        known = _Known(self._data, self._writer.run_id, self._delivered.folder)
        return [each for each in run_figures() if each.name not in self._given_up and each.there(known)]

    def _draw(self, figure: RunFigure) -> None:
        """Draw it; the first one loads matplotlib."""
        try:
            known = _Known(self._data, self._writer.run_id, self._delivered.folder)
            self._drawn = (figure, figure.draw(known))
        except Exception as error:  # likewise
            self._give_up(figure, error)

    def _send(self) -> None:
        if self._drawn is None:
            return
        figure, content = self._drawn
        file_name = picture_name(figure.name, self._delivered.number or 0)
        try:
            with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
                file = Path(room, file_name)
                file.write_bytes(content)
                self._writer.upload(file, figure.folder)
        except (OSError, RefusedError) as error:
            self._give_up(figure, error)
        self._drawn = None

    def _give_up(self, figure: RunFigure, error: Exception) -> None:
        self._given_up.add(figure.name)
        self._note(f"Picture {figure.name}.png not drawn", error)

    @staticmethod
    def _note(what: str, error: Exception) -> None:
        _logger.warning("%s: %s, %s. Everything else is delivered.", what, type(error).__name__, error)
