"""One recording in another tool: the points of MLflow's charts, under the same keys, and histograms by layer.

Guarantees: points are sent in a thread, as some tools take seconds to start, so that neither the run nor the training
waits; a failure is reported once and retried; a new courier continues where the last one was killed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_stability.alerts.message import RunLink
from mlflow_stability.alerts.mirrors import (
    TENSORBOARD,
    LayerHistogram,
    Mirror,
    Scalar,
    TensorBoardWriter,
    WandbWriter,
)
from mlflow_stability.courier.processes import TrainingState, written_at
from mlflow_stability.courier.progress import Delivered, write_page
from mlflow_stability.courier.sinks.metric_sink import DeliveryPace, MetricSink
from mlflow_stability.courier.sinks.sink import Backoff, Outlet, OutletPlan, readable
from mlflow_stability.journal.array_files import LayerTableFile, layer_table_files, read_layer_table
from mlflow_stability.journal.layout import mirror_page, read_page
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.tracking.thinning import Point
from mlflow_stability.vocabulary.run import Opening

RUN_SECONDS = 30.0  # how long a mirror waits for the name of the run


class MirrorOutlet(Outlet):
    def __init__(self, plan: OutletPlan, mirror: Mirror, delivered: Delivered, opening: Opening) -> None:
        self.link: RunLink | None = None  # the run, once known
        self._mirror, self._opening = mirror, opening
        self._progress = _Progress(delivered, mirror)
        every, layers = opening.log_every_n_steps, opening.layer_metrics
        self._metrics = MetricSink(self._progress, self, DeliveryPace(""), every, layers)
        super().__init__(plan, self._metrics.until)
        self._writer: TensorBoardWriter | WandbWriter | None = None
        self._began = time.monotonic()
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()  # requests to send: whether the training is over
        self._results: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._busy = False  # the thread has the points: nothing can be taken
        self._thread = threading.Thread(target=self._work, name=f"mirror to {mirror.tool}", daemon=True)
        self._reported = False
        self._backoff = Backoff(1.0, 60.0)

    @property
    def full(self) -> bool:
        return self.done or self._busy or self._metrics.full

    def log(self, points: Sequence[Point], prefix: str) -> None:
        self._open_writer().write(
            [Scalar(metric_key(point.signal, prefix), point.step, point.value, point.time) for point in points]
        )

    def _open_writer(self) -> TensorBoardWriter | WandbWriter:
        if self._writer is None:
            link = self.link or RunLink(self._opening.run_id or self._opening.recording)
            kind = TensorBoardWriter if self._mirror.tool == TENSORBOARD else WandbWriter
            self._writer = kind(self._mirror.target, link, self._opening.directory, self._progress.of_writer)
            self._progress.saved = self._writer.saved
        return self._writer

    def _take(self, record: Record) -> None:
        self._metrics.until = self.until
        self._metrics.take(record)

    def _flush(self, state: TrainingState) -> bool:
        """Pass points to the thread if it is idle, and check whether everything was written."""
        now = time.monotonic()
        if self._busy:
            self._look_for_result(now)
        self.ends(state)
        is_known = self.link is not None or now - self._began > RUN_SECONDS
        due = is_known and self._backoff.ready(now) and (not self.more or self._metrics.full)
        if due and not self._busy and not self._metrics.done:
            self._metrics.until, self._metrics.more, self._busy = self.until, self.more, True
            if not self._thread.ident:
                self._thread.start()
            self._jobs.put(self.over_since is not None)
        self.settle(self._busy or not self._metrics.done)
        return False

    def _look_for_result(self, now: float) -> None:
        try:
            error = self._results.get_nowait()
        except queue.Empty:
            return
        self._busy = False
        if error is None:
            self._backoff.succeeded()
            return
        self._backoff.failed(error, now)
        if not self._reported:
            self._reported = True
            self._plan.say(
                f"Mirroring to {self._mirror.tool} failed ({type(error).__name__}: {error}). Training and its "
                "run are not affected; it is tried again."
            )

    def _work(self) -> None:
        """Send points at each request, until everything has arrived."""
        while not self._send_all(self._jobs.get()):
            pass

    def _send_all(self, over: bool) -> bool:
        error = None
        try:
            progress = self._progress
            files = layer_table_files(progress.folder, progress.tables_until, settled=not over)
            for step, of_step in groupby((file for file in files if file.has_histograms), key=lambda file: file.step):
                histograms = [histograms_of(file, progress.prefix, progress.offset) for file in of_step]
                self._open_writer().write_histograms(list(chain.from_iterable(histograms)))
                progress.tables_until = step
                progress.save()
            while self._metrics.flush(over):
                pass
            if self._metrics.done:
                self._close()
        except Exception as raised:  # the next attempt continues from the saved position
            error = raised
            self._metrics.send_again()
            with suppress(Exception):
                self._close()
        self._results.put(error)
        return self._metrics.done

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _Progress:
    """Position of a mirror, saved like that of metrics."""

    def __init__(self, delivered: Delivered, mirror: Mirror) -> None:
        self._delivered = delivered
        self._page = mirror_page(delivered.folder, mirror.tool)
        page = read_page(self._page)
        self.metrics_until: int = page.get("until", 0)
        self.tables_until: int = page.get("tables", -1)  # last step whose histograms were written
        self.thinning: dict[str, Any] = page.get("thinning", {})
        self.of_writer: dict[str, Any] = page.get("writer", {})
        self.saved: Callable[[], Mapping[str, Any]] = dict

    @property
    def folder(self) -> Path:
        return self._delivered.folder

    @property
    def offset(self) -> int:
        return self._delivered.offset

    @property
    def prefix(self) -> str:
        return self._delivered.prefix

    def save(self) -> None:
        self.of_writer = dict(self.saved())
        page = {"until": self.metrics_until, "tables": self.tables_until, "thinning": self.thinning}
        write_page(self._page, {**page, "writer": self.of_writer})


_logger = logging.getLogger("mlflow_stability.courier")


def histograms_of(file: LayerTableFile, prefix: str, offset: int) -> list[LayerHistogram]:
    """Return a histogram for each layer with finite values; none where the file is damaged or gone."""
    table, written = readable(read_layer_table, file.path), written_at(file.path)
    if table is None:
        return []
    step, name = table.step + offset, f"{prefix}/histograms/{table.what}"
    return [
        LayerHistogram(f"{name}/{layer}", step, written, edges.tolist(), counts.tolist())
        for layer, edges, counts in zip(table.layers, table.edges, table.counts, strict=True)
        if np.isfinite(edges).all()
    ]
