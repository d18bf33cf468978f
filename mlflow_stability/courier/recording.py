"""Deliver one recording, from its first line to the end of its run.

Guarantees: each sink has its own patience, so that a stuck one delays nothing else; `complete` is set when everything
has arrived, `finished` when the run's status is right as well. Of a deleted journal, what was read arrives, and the run
ends with the process. The folder is removed when, and only when, everything has arrived and no process can write into
it any more; without a store nothing is read into memory.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlflow_stability
from mlflow_stability.alerts.message import RunLink
from mlflow_stability.courier.processes import (
    RankProcesses,
    TrainingProcess,
    TrainingState,
    rank_died,
    silent_end,
    status_to_set,
    waits_for_process,
)
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.run_of_recording import EarlierRecordings, RunTags, open_run
from mlflow_stability.courier.sinks.attention_sinks import AttentionPictures, AttentionSink
from mlflow_stability.courier.sinks.event_sink import EventSink
from mlflow_stability.courier.sinks.figure_sink import FigureSink
from mlflow_stability.courier.sinks.file_sinks import (
    BatchSink,
    CheckpointSink,
    FactSink,
    KeptFileSink,
    LayerSink,
    PartSink,
    ask_git,
)
from mlflow_stability.courier.sinks.metric_sink import DeliveryPace, MetricSink
from mlflow_stability.courier.sinks.outlets import Outlets
from mlflow_stability.courier.sinks.sink import Backoff, JournalReader, OutletPlan, TimedSink, upload_file
from mlflow_stability.errors import RunNotFoundError, StabilityError, TrackingError
from mlflow_stability.journal.journal import FINAL_STATUS, is_deleted, journal_size, opening_if_readable, opening_of
from mlflow_stability.journal.layout import read_page
from mlflow_stability.tracking.address import tracking_uri_for
from mlflow_stability.tracking.client import RefusedError
from mlflow_stability.tracking.run_files import REPORT_FOLDER
from mlflow_stability.tracking.run_writer import system_monitor
from mlflow_stability.vocabulary.run import Closing, Opening
from mlflow_stability.vocabulary.settings import BATCHES_FOLDER, CHECKPOINTS_FOLDER

RECORD_SCHEMA = "1"
_logger = logging.getLogger("mlflow_stability.courier")


class OpenRecording:
    def __init__(
        self,
        opening: Opening,
        delivered: Delivered,
        uri: str,
        process: TrainingProcess,
        reader: JournalReader,
        awaits: Callable[[], bool],
        ranks: RankProcesses,
    ) -> None:
        """`awaits`: whether the end of the training should wait for something that does not go into the run."""
        try:
            self.writer, place = open_run(opening, delivered, uri, process)
        finally:  # also if the store is away: the code may change until it is back
            ask_git(delivered, opening)
        self._machine = system_monitor(self.writer.run_id, uri) if opening.system_metrics else None
        self.parts = PartSink(delivered, self.writer, opening.time)
        self.events = EventSink(delivered, self.writer)
        facts = FactSink(delivered, self.writer)
        figures = FigureSink(delivered, self.writer)
        layers = LayerSink(delivered, self.writer, opening.time, opening.layer_metrics)
        attention = AttentionSink(delivered, self.writer)
        self._attention = AttentionPictures(delivered, self.writer, process.alive)
        self._pictures: list[TimedSink] = [figures, self._attention]
        self._kept_files: dict[type[KeptFileSink], KeptFileSink] = {}
        version = {"version": mlflow_stability.__version__, "schema": RECORD_SCHEMA}
        constant = {**version, "metrics_every": opening.log_every_n_steps}
        self._board = RunTags(self.writer, delivered.number or 0, place, constant)
        self._uri = uri
        self._delivered = delivered
        self._opening = opening
        self._process = process
        self._reader = reader
        self._ranks: RankProcesses | None = ranks  # until their ends are known
        self._pace = DeliveryPace(uri)
        self.metrics = self._new_metrics()
        self._sinks: list[TimedSink] = [self.events, facts, self.metrics, self.parts, layers, attention]
        self._awaits = awaits
        self._patience: dict[object, Backoff] = {}
        self._last_words: Mapping[str, Any] = {}
        self._has_ended = False  # the run has ended; only pictures can be left
        self.concluded = False  # its end and its outcome are in the run
        self.finished = False
        reader.add(self.events, facts, self.metrics, self.parts, figures)

    @property
    def troubles(self) -> list[Backoff]:
        return [backoff for backoff in self._patience.values() if backoff.error]

    @property
    def over(self) -> bool:
        """Whether the training has reported its end."""
        return self.events.story.closing is not None or bool(self._last_words.get("closing"))

    @property
    def left(self) -> list[str]:
        """What has not arrived yet, once nothing more is recorded."""
        if not self.over or self._delivered.complete:
            return []
        waiting = [sink.words for sink in (*self._sinks, *self._pictures) if not sink.done]
        return waiting or ["report"]

    @property
    def flushed(self) -> bool:
        """Whether everything recorded before the last `hurry` has arrived."""
        return not self.over and not any(sink.hurried for sink in self._sinks)

    def hurry(self) -> None:
        """Deliver at once what was recorded so far."""
        for sink in self._sinks:
            sink.hurried = True

    def _new_metrics(self) -> MetricSink:
        every, layers = self._opening.log_every_n_steps, self._opening.layer_metrics
        metrics = MetricSink(self._delivered, self.writer, self._pace, every, layers)
        metrics.awaited = not self._delivered.complete
        return metrics

    def flush(self, state: TrainingState) -> bool:
        """Send one request of each sink, and end the run when it is time; False if there was nothing to do."""
        self._last_words = state.last_words
        over = not state.alive or self.over
        if not over and not state.journal_deleted and not self._opening.interactive:
            self.events.look_for_stall()
        moved = False
        # Checkpoints and batches are delivered once their folder is known.
        for kind, name in ((CheckpointSink, CHECKPOINTS_FOLDER), (BatchSink, BATCHES_FOLDER)):
            folder = self.events.story.folder(name)
            if folder is not None and kind not in self._kept_files:
                self._kept_files[kind] = kind(self._delivered, self.writer, folder)
                self._sinks.append(self._kept_files[kind])
        for sink in self._sinks:
            if not (over and sink.done):
                moved |= self._try(sink, partial(sink.flush, over))
        if over and self._machine is not None:
            self._machine.finish()
            self._machine = None
        arrived = over and all(sink.done for sink in self._sinks)
        if arrived and not self.concluded:
            moved |= self._try(self._board, partial(self._conclude, state))
        for picture in self._pictures:  # pictures come last
            if not (arrived and picture.done):
                moved |= self._try(picture, partial(picture.flush, arrived))
        left = [picture for picture in self._pictures if not picture.done]
        rest = not left or (left == [self._attention] and not self._attention.awaited)
        if self.concluded and not self._has_ended and not self._awaits() and rest:
            moved |= self._try(self._board, partial(self._end, state))
        # The training does not wait any more.
        if (self._has_ended or self._delivered.complete) and not self.metrics.filled:
            moved |= self._try(self.metrics, self._fill)
        self.finished = self._has_ended and not left and self.metrics.filled
        if not self.concluded and not self._delivered.complete and self._board.due():
            self._try(self._board, partial(self._board.show, self.events.story, self._last_words))
        return moved

    def seconds_to_wait(self) -> float:
        failed = self.metrics in self._patience and self._patience[self.metrics].error
        return float("inf") if failed else self.metrics.seconds_to_wait()

    def waiting_bytes(self) -> int:
        """Return how much of the journal has not arrived everywhere."""
        reached = min(self.metrics.reached, self.parts.reached, self.events.until)
        return max(0, journal_size(self._delivered.folder) - reached)

    def _closing_said(self, state: TrainingState) -> Closing | None:
        """Return how the training ended, by its own report."""
        story = self.events.story
        return story.closing or state.closing or (None if state.alive else story.returned)

    def _closing(self, state: TrainingState) -> Closing:
        story = self.events.story
        return self._closing_said(state) or silent_end(
            state.killed_for_memory(), story.last_step, story.last_time, state.journal_deleted
        )

    def _conclude(self, state: TrainingState) -> bool:
        """Write how the process ended, and the outcome, when all data has arrived."""
        closing = self._closing(state)
        ranks, self._ranks = self._ranks, None
        ended = [] if ranks is None else ranks.first_end()
        died = rank_died(closing, self.events.story.last_step, ended, restarts=bool(self._opening.job))
        if died is not None:
            self.events.add(died)
        if self.events.story.closing is None and not self.events.concluded:
            self.events.conclude(closing)
            return True
        if died is not None:
            return True
        if not self._delivered.complete:
            self._board.close(self.events.story, self._last_words, closing)
            self._report()
        self.concluded = True
        return True

    def _end(self, state: TrainingState) -> bool:
        """End the run, as soon as its status is certain."""
        story, closing_said = self.events.story, self._closing_said(state)
        closing = self._closing(state)
        own = self._opening.run_id is None or self._opening.resumed
        process_first = state.alive and waits_for_process(closing, own)
        if not process_first:
            status = status_to_set(
                closing, closing_said is not None, own, self.writer.status(), self._board.others_live()
            )
            if status is not None:
                self.writer.end(status, closing.time or story.last_time)
        # The training may end as soon as it reads this, and end this process with it: report everything first.
        if not self._delivered.complete and (closing_said is not None or self._process.has_ended()):
            self._delivered.complete = True
            self._delivered.save()
        if process_first:
            return False
        self._has_ended = True
        return True

    def _fill(self) -> bool:
        """Send the postponed points."""
        self._pace.share = max(0.5, self._pace.share)  # nothing waits for them, and others write into the same store
        self.metrics.awaited = False
        if self.metrics.must_be_repeated:
            self.metrics = self._new_metrics()
            self._reader.add(self.metrics)
        return self.metrics.flush(over=True)

    def _report(self) -> None:
        """Write report, final tags and description; what reads and judges is imported here."""
        try:
            from mlflow_stability.courier.conclusion import best_checkpoint, conclusion_of

            conclusion = conclusion_of(self.writer.run_id, self._uri, self.writer.page())
            self._board.conclude(conclusion.tags, conclusion.description)
            self._delivered.verdict, self._delivered.cause = conclusion.verdict, conclusion.cause
            self._delivered.codes = conclusion.codes
            self._delivered.checkpoint = best_checkpoint(self.events.story.folder(CHECKPOINTS_FOLDER))
            for name, text in conclusion.files.items():
                upload_file(self.writer, REPORT_FOLDER, name, text)
        except Exception as error:  # the rest has arrived, and the run must end
            if isinstance(error, RunNotFoundError | TrackingError) and not isinstance(error, RefusedError):
                raise
            name = type(error).__name__
            if not self._delivered.verdict:
                self._delivered.verdict = f"No verdict: the report could not be made ({name})."
            no_report = "No report of run %s: %s, %s. `mlflow-stability diagnose` makes one."
            _logger.warning(no_report, self.writer.run_id, name, error)

    def _try(self, what: object, act: Callable[[], bool | None]) -> bool:
        patience = self._patience.setdefault(what, Backoff())
        now = time.monotonic()
        if not patience.ready(now):
            return False
        try:
            moved = bool(act())
        except StabilityError as error:
            patience.failed(error, time.monotonic())
            return False
        patience.succeeded()
        return moved


class Recording:
    def __init__(
        self,
        folder: Path,
        process: TrainingProcess,
        tracking_uri: str | None,
        plan: OutletPlan,
        ranks: RankProcesses,
        before: Sequence[Recording],
    ) -> None:
        """`before`: earlier recordings of the same session."""
        self.folder = folder
        self.gone = False  # everything has arrived and the folder was removed
        self.kept = False  # everything has arrived, and the folder stays: its process may continue
        self._process = process
        self._given_uri = tracking_uri
        self.delivered = Delivered.read(folder)
        self._patience = Backoff()
        self._reader = JournalReader(folder)
        self._last_words: dict[str, Any] = {}
        self._open: OpenRecording | None = None
        self._plan = plan
        self._ranks = ranks
        self._outlets: Outlets | None = None
        self._flush_asked = False
        self._before = before
        self._earlier = EarlierRecordings()

    @property
    def complete(self) -> bool:
        """Whether everything has arrived; the run's status may still wait for the end of the process."""
        return self.gone or self.delivered.complete

    @property
    def concluded(self) -> bool:
        """Whether its end and outcome are in its run."""
        return self.complete or self.kept or (self._open is not None and self._open.concluded)

    @property
    def caught_up(self) -> bool:
        """Whether there is nothing to do before more is recorded."""
        if self.complete:
            return self.gone or self._open is None or self._open.metrics.filled
        return self.waiting_bytes() == 0 and not (self._open and self._open.over)

    @property
    def left(self) -> list[str]:
        """What has not arrived yet, once nothing more is recorded."""
        if self.complete:
            return []
        return self._open.left if self._open else ["everything"]

    @property
    def flushed(self) -> bool:
        """Whether everything recorded before the last `flush` has arrived."""
        return self.complete or (self._open is not None and not self._flush_asked and self._open.flushed)

    def flush(self) -> None:
        """Deliver at once what was recorded so far."""
        self._flush_asked = True

    @property
    def refused(self) -> list[str]:
        return sorted(self._open.writer.refused) if self._open else []

    @property
    def troubles(self) -> list[Backoff]:
        own = [self._patience] if self._patience.error else []
        return own + (self._open.troubles if self._open else [])

    def waiting_bytes(self) -> int:
        if self.gone:
            return 0
        return self._open.waiting_bytes() if self._open else journal_size(self.folder)

    def seconds_to_wait(self) -> float:
        return self._open.seconds_to_wait() if self._open else float("inf")

    def advance(self, alive: bool, killed_for_memory: Callable[[], bool]) -> bool:
        """Deliver a portion; False if there was nothing to do. `alive`: training may still append."""
        if self.gone or self.kept:
            return False
        deleted = is_deleted(self.folder)
        if not deleted:
            self._last_words = read_page(self.folder / FINAL_STATUS)
        stalled = self._open.events.story.stalled if self._open else None
        state = TrainingState(alive, killed_for_memory, self._last_words, deleted, stalled)
        moved = self._reader.advance()
        # Outlets do not wait for the store: their messages matter most while it is away.
        if self._outlets is None and self._plan.settings:
            opening = opening_if_readable(self.folder)
            if opening is not None:
                self._outlets = Outlets(self._plan, self.delivered, opening)
                self._reader.add(*self._outlets.sinks)
        moved |= self._outlets is not None and self._outlets.flush(state)
        if self._open is None:
            return self._begin(alive) or moved
        if self._flush_asked:
            self._flush_asked = False
            self._open.hurry()
        moved |= self._open.flush(state)
        if self._open.finished and (self._outlets is None or self._outlets.done):
            self._remove_if_over(self._open.over)
        return moved

    def _begin(self, alive: bool) -> bool:
        if not self._patience.ready(time.monotonic()):
            return False
        try:
            opening = opening_of(self.folder)
            if opening is None:
                if not alive:  # it was killed before it had recorded anything
                    self._remove_if_over(said_so=False)
                return False
            uri = tracking_uri_for(opening.tracking_uri, opening.directory, self._given_uri)
            undelivered = [recording.delivered.recording for recording in self._before if not recording.concluded]
            if self.delivered.number is None and self._earlier.awaited(opening, uri, undelivered):
                return False
            self._before = ()
            self._open = OpenRecording(
                opening,
                self.delivered,
                uri,
                self._process,
                self._reader,
                lambda: self._outlets is not None and self._outlets.awaited,
                self._ranks,
            )
            if self._outlets is not None:
                delivered = self.delivered
                self._outlets.link(RunLink(delivered.run_id or "", delivered.run_name, delivered.url))
        except StabilityError as error:
            self._patience.failed(error, time.monotonic())
            return False
        self._patience.succeeded()
        return True

    def _remove_if_over(self, said_so: bool) -> None:
        if not said_so and not self._process.has_ended():
            self.kept = True
            return
        self.gone = True
        shutil.rmtree(self.folder, ignore_errors=True)
