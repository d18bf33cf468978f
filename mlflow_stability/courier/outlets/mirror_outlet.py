"""The scalars of one recording in another tool: the points that MLflow's charts get, under the same keys.

In: the journal, from the position up to which it was mirrored. Out: points, on a thread of its own: some tools take
seconds to begin. Guarantees: neither the run nor the training waits for a mirror; one that fails is reported once and
tried again; a new courier goes on where the one before it was killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlflow_stability.alerts.message import RunLink
from mlflow_stability.alerts.metrics import TENSORBOARD, Mirror
from mlflow_stability.alerts.metrics.scalar_writer import MirroredRun, Scalar, ScalarWriter
from mlflow_stability.alerts.metrics.tensorboard_writer import TensorBoardWriter
from mlflow_stability.alerts.metrics.wandb_writer import WandbWriter
from mlflow_stability.courier.outlets.outlet import JournalReader, OutletPlan, TrainingState
from mlflow_stability.courier.progress import Delivered, read_page, write_page
from mlflow_stability.courier.streams.metric_stream import DeliveryPace, MetricStream
from mlflow_stability.journal.layout import mirror_page
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.tracking.write import Point
from mlflow_stability.vocabulary.run import Opening

RUN_SECONDS = 30.0
"""For so long a mirror waits for the name of the run."""
AWAITED_SECONDS = 10.0
"""For so long the end of the training waits for a mirror."""
GIVE_UP_SECONDS = 600.0
_LONGEST_DELAY = 60.0


class MirrorOutlet:
    """One recording, in one tool."""

    def __init__(self, plan: OutletPlan, mirror: Mirror, delivered: Delivered, opening: Opening) -> None:
        self.done = False
        self.awaited = True
        self.link: RunLink | None = None
        """The run, as soon as it is known."""
        self._mirror, self._plan, self._opening = mirror, plan, opening
        self._delivered = delivered
        self._journal = JournalReader(delivered.folder)
        self._began = time.monotonic()
        self._over = threading.Event()
        self._over_since: float | None = None
        self._thread: threading.Thread | None = None
        self._reported = False

    def advance(self, state: TrainingState) -> bool:
        """See that the thread runs, and tell it when the training is over."""
        known = self.link is not None or time.monotonic() - self._began > RUN_SECONDS
        if self._thread is None and known:
            self._thread = threading.Thread(target=self._work, name=f"mirror to {self._mirror.tool}", daemon=True)
            self._thread.start()
        if self._over_since is None:
            self._journal.read()  # only to know when it ends
            if self._journal.is_over(state):
                self._over_since = time.monotonic()
                self._over.set()
        if self._over_since is not None:
            since = time.monotonic() - self._over_since
            written = self._thread is not None and not self._thread.is_alive()
            self.awaited = not written and since < AWAITED_SECONDS
            self.done = written or since > GIVE_UP_SECONDS
        return self._journal.more

    def _work(self) -> None:
        delay = 1.0
        while not self.done:
            try:
                self._mirror_all()
            except Exception as error:  # whatever the tool raises; the next attempt goes on behind what was kept
                if not self._reported:
                    self._reported = True
                    self._plan.say(
                        f"Mirroring to {self._mirror.tool} failed ({type(error).__name__}: {error}). Training and its "
                        "run are not affected; it is tried again."
                    )
                time.sleep(delay)
                delay = min(_LONGEST_DELAY, delay * 2)
            else:
                return

    def _mirror_all(self) -> None:
        progress = _Progress(self._delivered, self._mirror)
        link = self.link or RunLink(self._opening.run_id or self._opening.recording)
        run = MirroredRun(link.run_id, link.name, self._opening.directory)
        kind = TensorBoardWriter if self._mirror.tool == TENSORBOARD else WandbWriter
        writer: ScalarWriter = kind(self._mirror.target, run, progress.of_writer)
        progress.saved = writer.saved
        try:
            stream = MetricStream(
                progress,
                _Points(writer),
                DeliveryPace(""),
                self._opening.log_every_n_steps,
                self._opening.layer_metrics,
            )
            while not stream.done:
                over = self._over.is_set()
                if not stream.advance(over) and not over:
                    self._over.wait(0.5)
        finally:
            writer.close()


class _Progress:
    """How far a mirror is, kept as the delivery of metrics keeps it."""

    def __init__(self, delivered: Delivered, mirror: Mirror) -> None:
        self.folder = delivered.folder
        self._delivered = delivered
        self._page = mirror_page(delivered.folder, mirror.key)
        page = read_page(self._page)
        self.metrics_until: int = page.get("until", 0)
        self.thinning: dict[str, Any] = page.get("thinning", {})
        self.of_writer: dict[str, Any] = page.get("writer", {})
        self.saved: Callable[[], Mapping[str, Any]] = dict

    @property
    def offset(self) -> int:
        """What is added to steps."""
        return self._delivered.offset

    @property
    def section(self) -> str:
        """The section of the recording."""
        return self._delivered.section

    def save(self) -> None:
        """Keep it."""
        writer = dict(self.saved())
        write_page(self._page, {"until": self.metrics_until, "thinning": self.thinning, "writer": writer})


class _Points:
    """Writes points under the keys that MLflow has for them."""

    def __init__(self, writer: ScalarWriter) -> None:
        self._writer = writer

    def log(self, points: Sequence[Point], section: str) -> None:
        """Write some."""
        self._writer.write(
            [Scalar(metric_key(each.signal, section), each.step, each.value, each.time) for each in points]
        )
