"""Deliver files: every reading of a journal and the tables of layers as Parquet, checkpoints, batches, facts.

Parquet files become rarer with time, so that a long run does not have thousands of them. Guarantees: a file that is
sent twice replaces itself; memory is bounded; the training's directories of checkpoints and batches are only read; a
vanished file is no error; one that the store refuses is skipped, and noted with the recording.

Facts that people choose are parameters of the run, all are in `stability/data/environment.json`. Git is asked once,
writes nothing, runs no watcher and no diff tool, for a few seconds at most.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path

from mlflow_stability.courier.processes import written_at
from mlflow_stability.courier.progress import Delivered, write_page
from mlflow_stability.courier.sinks.sink import RunSink, readable
from mlflow_stability.errors import TrackingError
from mlflow_stability.journal.array_files import LayerTableFile, layer_table_files, read_layer_table
from mlflow_stability.journal.journal import Record
from mlflow_stability.journal.layout import read_page
from mlflow_stability.recovery.checkpoints.stored_checkpoints import StoredCheckpoint, damage_of, listing
from mlflow_stability.tracking.artifacts import DATA_FOLDER, LAYER_TABLES_FOLDER, RECORD_FOLDER
from mlflow_stability.tracking.client import RefusedError
from mlflow_stability.tracking.read.run_record import PartBuffer, part_name, write_layer_part
from mlflow_stability.tracking.run_writer import RunWriter, is_chosen
from mlflow_stability.tracking.thinning import LayerMetrics, Point, chosen_signals
from mlflow_stability.vocabulary.measured.layer_arrays import STATISTICS, LayerTable
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Fact, Opening

_SHORTEST_INTERVAL = 60.0
_INTERVALS_PER_RUN = 50
_MOST_WAITING = 1_000_000  # values and readings in memory
_MOST_BYTES = 32_000_000  # of tables of layers in one file
_MOST_POINTS = 200  # of one request: on a SQLite file the script's own calls wait for it
PAGE = "layers.json"  # step up to which tables have arrived
_logger = logging.getLogger("mlflow_stability.courier")


class TableSink(RunSink):
    """Sends files ever less often."""

    def __init__(self, delivered: Delivered, writer: RunWriter, started: float, until: int = 0) -> None:
        super().__init__(delivered, writer, until)
        self._started = started
        self.looked_at = time.monotonic()

    def due(self, over: bool) -> bool:
        self.interval = max(_SHORTEST_INTERVAL, (time.time() - self._started) / _INTERVALS_PER_RUN)
        return super().due(over)


class PartSink(TableSink):
    """Record of one recording with all steps."""

    words = "full record"

    def __init__(self, delivered: Delivered, writer: RunWriter, started: float) -> None:
        super().__init__(delivered, writer, started, delivered.parts_until)
        self._buffer = PartBuffer()
        self._overdue = False

    @property
    def reached(self) -> int:
        """Position up to which parts have arrived; what waits for the next part to be due does not count."""
        return self._delivered.parts_until if self._overdue else self.until

    @property
    def full(self) -> bool:
        return len(self._buffer) + self._buffer.readings >= _MOST_WAITING

    def take(self, record: Record) -> None:
        if isinstance(record, StepReading):
            self._buffer.add(record, record.step + self._offset)

    def flush(self, over: bool) -> bool:
        full = self.full
        if not full and (self.more or not self.due(over)):
            return False
        self._overdue = True
        if self._buffer.readings:
            name = part_name(self._number, self._delivered.parts_until)
            self.upload(RECORD_FOLDER, name, lambda file: self._buffer.write(file, self._number))
            self._buffer.clear()
        if self.until > self._delivered.parts_until:
            self._delivered.parts_until = self.until
            self._delivered.save()
        self._overdue = False
        self.looked_at = time.monotonic()
        return full or self.rest(over)


class LayerSink(TableSink):
    """Tables of layers of one recording, and their statistics as metrics if asked for."""

    words = "layers"

    def __init__(self, delivered: Delivered, writer: RunWriter, started: float, metrics: LayerMetrics = "") -> None:
        super().__init__(delivered, writer, started)
        self._metrics = metrics
        self._page = delivered.folder / PAGE
        self._until_step = int(read_page(self._page).get("until", -1))

    def flush(self, over: bool) -> bool:
        """Send a file, if it is time and there is something to send."""
        if not self.due(over):
            return False
        waiting = layer_table_files(self._delivered.folder, self._until_step, settled=not over)
        chosen = _as_many_as_fit(waiting)
        if chosen:
            self._send(chosen)
        return len(chosen) < len(waiting) or self.rest(over)

    def _send(self, files: list[LayerTableFile]) -> None:
        tables = [(file, table) for file in files if (table := readable(read_layer_table, file.path)) is not None]
        if tables:
            name = part_name(self._number, files[0].step + self._offset)
            content = [table for _, table in tables]
            write = partial(write_layer_part, tables=content, recording=self._number, offset=self._offset)
            self.upload(LAYER_TABLES_FOLDER, name, write)
        if self._metrics:
            points = [point for file, table in tables for point in self._points(file, table)]
            for begin in range(0, len(points), _MOST_POINTS):
                self._writer.log(points[begin : begin + _MOST_POINTS], self._delivered.prefix)
        self._until_step = files[-1].step
        write_page(self._page, {"until": self._until_step})

    def _points(self, file: LayerTableFile, table: LayerTable) -> list[Point]:
        """Return the statistics of a table, with the time of its file, so that a store recognises them."""
        signals = tuple(Signal(f"{table.what}_{name}", layer) for layer in table.layers for name in STATISTICS)
        values = table.statistics.ravel().tolist()
        step, when = table.step + self._offset, written_at(file.path) or time.time()
        chosen = ((signal.signal, signal.value(values)) for signal in chosen_signals(signals, self._metrics))
        return [Point(signal, step, value, when) for signal, value in chosen if math.isfinite(value)]


def _as_many_as_fit(files: list[LayerTableFile]) -> list[LayerTableFile]:
    """Return the first files, whole steps only: the position to continue from is a step."""
    sizes = list(accumulate(_size(file) for file in files))
    room = next((number for number, size in enumerate(sizes) if size > _MOST_BYTES), len(files))
    if room == len(files):
        return files
    last = files[max(0, room - 1)].step
    whole = [file for file in files if file.step < last]
    return whole or [file for file in files if file.step == last]


def _size(file: LayerTableFile) -> int:
    try:
        return file.path.stat().st_size
    except OSError:
        return 0


BATCHES_FOLDER = "stability/batches"
_BATCH = re.compile(r"batch-(\d+)\.pt")


class KeptFileSink(RunSink):
    """Files that the training keeps, and may remove at any moment."""

    interval = 10.0

    def __init__(self, delivered: Delivered, writer: RunWriter, directory: Path) -> None:
        super().__init__(delivered, writer)
        self.refused = ""  # why the store does not take or delete one, if so
        self._directory = directory

    def flush(self, over: bool) -> bool:
        """Send or remove one file, if there is one."""
        return self.due(over) and (self._send_next() or self.rest(over))

    def _send_next(self) -> bool:
        raise NotImplementedError

    def _send(self, source: Path, name: str, send: Callable[[Path], object]) -> bool:
        """Send a link or a copy, as the training may remove the file meanwhile; False where it has."""
        try:
            with tempfile.TemporaryDirectory(prefix=".sending-", dir=self._directory.parent) as room:
                copy = Path(room, name)
                if source.is_dir():
                    shutil.copytree(source, copy, copy_function=_link_or_copy)
                else:
                    _link_or_copy(source, copy)
                with self._noting_refusals():
                    send(copy)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise TrackingError(f"Could not read {source.name}: {error}") from error
        return True

    @contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            self.refused = str(error)


class CheckpointSink(KeptFileSink):
    """Good checkpoints of one recording; those that the training removes are removed."""

    words = "checkpoints"

    def __init__(self, delivered: Delivered, writer: RunWriter, directory: Path) -> None:
        super().__init__(delivered, writer, directory)
        self._checkpoints = writer.checkpoints()
        self._sent: set[str] | None = None

    def _send_next(self) -> bool:
        if self._sent is None:
            self._sent = self._whole() if self._directory.is_dir() else set()
        good = {checkpoint.folder.name: checkpoint for checkpoint in listing(self._directory) if checkpoint.is_good}
        waiting = [name for name in good if name not in self._sent]
        if waiting:
            name = waiting[-1]  # the newest is what a restart wants
            checkpoint = good[name]

            def upload(copy: Path) -> None:
                if not damage_of(StoredCheckpoint(copy, checkpoint.step, checkpoint.meta)):
                    self._checkpoints.upload(copy)

            if self._send(checkpoint.folder, name, upload):
                self._sent.add(name)
            return True
        removed = sorted(self._sent - good.keys())
        if removed and not self.refused:
            with self._noting_refusals():
                self._checkpoints.remove(removed[0])
                self._sent.discard(removed[0])
            return True
        return False

    def _whole(self) -> set[str]:
        """Return those in the run; incomplete ones are sent again."""
        with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
            names = self._checkpoints.names()
            return {name for name in names if self._checkpoints.meta(name, Path(room)) is not None}


class BatchSink(KeptFileSink):
    """Batches of broken steps of one recording, if the user asked for them.

    A new courier sends all of them, a few at most, again over themselves.
    """

    words = "batches"

    def __init__(self, delivered: Delivered, writer: RunWriter, directory: Path) -> None:
        super().__init__(delivered, writer, directory)
        self._passed: set[str] = set()  # sent, or refused

    def _send_next(self) -> bool:
        for file in sorted(self._directory.iterdir()) if self._directory.is_dir() else ():
            match = _BATCH.fullmatch(file.name)
            if match is not None and file.name not in self._passed:
                name = f"recording-{self._number:03d}-batch-{int(match[1]) + self._offset:06d}.pt"
                self._send(file, name, lambda copy: self._writer.upload(copy, BATCHES_FOLDER))
                self._passed.add(file.name)
                return True
        return False


def _link_or_copy(source: Path | str, target: Path | str) -> None:
    """Link a file, or copy it where the file system has no links; FileNotFoundError where it is gone."""
    try:
        Path(target).hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


SECONDS = 5.0  # limit for one git call: work trees on network file systems can be slow
MOST_LINES = 50  # of the diff summary, and of untracked files
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}
# A repository can name programs that git runs while it looks around: a watcher of files, a way to show differences.
_PLAIN = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--no-pager")


def git_state(directory: str) -> dict[str, str]:
    status = _git(
        directory, "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty"
    )
    if status is None:
        return {}
    head = dict(line[2:].split(" ", 1) for line in status if line.startswith("# ") and " " in line[2:])
    changed = [line for line in status if line and not line.startswith("#")]
    commit = head.get("branch.oid", "")
    facts = {
        "git.commit": "" if commit == "(initial)" else commit,
        "git.branch": head.get("branch.head", ""),
        "git.dirty": str(bool(changed)),
    }
    if changed and facts["git.commit"]:
        options = ("--stat=120", f"--stat-count={MOST_LINES}", "--no-ext-diff", "--no-textconv", "HEAD")
        facts["git.diff"] = "\n".join(_git(directory, "diff", *options) or ())
    untracked = _git(directory, "ls-files", "--others", "--exclude-standard", "--", "*.py") or []
    more = [f"and {len(untracked) - MOST_LINES} more"] if len(untracked) > MOST_LINES else []
    facts["git.untracked"] = "\n".join([*untracked[:MOST_LINES], *more])
    return {key: value for key, value in facts.items() if value}


def _git(directory: str, *words: str) -> list[str] | None:
    if not directory or not Path(directory).is_dir():
        return None
    try:
        answer = subprocess.run(
            ["git", *_PLAIN, *words],  # noqa: S607 - the git that the user would run
            cwd=directory,
            env={**os.environ, **_QUIET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode:
        return None
    return answer.stdout.decode(errors="replace").rstrip("\n").split("\n") if answer.stdout.strip() else []


ASK_WITHIN = 600.0
"""Seconds after the start of a recording during which the code on disk is assumed to be the running code."""


class FactSink(RunSink):
    words = "parameters"

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self._params = writer.params(self._number)
        self._facts = dict(delivered.git or {})
        self._sent: set[str] = set()

    def take(self, record: Record) -> None:
        """Keep a fact; the first one of its name counts, after those of git."""
        if isinstance(record, Fact):
            self._facts.setdefault(record.key, record.value)

    def flush(self, over: bool) -> bool:
        """Send new facts, if any."""
        new = {key: value for key, value in self._facts.items() if key not in self._sent}
        if new:
            self._params.write({key: value for key, value in new.items() if is_chosen(key, value)})
            self._writer.refused.update(self._params.refused)
            name = f"environment_{self._number + 1}.json" if self._number else "environment.json"
            self.upload(DATA_FOLDER, name, json.dumps(self._facts, indent=1, ensure_ascii=False) + "\n")
            self._sent |= new.keys()
        return False if self.more else self.rest(over)


def ask_git(delivered: Delivered, opening: Opening) -> None:
    """Ask git once; the answer is saved with the recording."""
    if delivered.git is None:
        fresh = time.time() - opening.time < ASK_WITHIN
        delivered.git = git_state(opening.directory) if fresh else {}
        delivered.save()
