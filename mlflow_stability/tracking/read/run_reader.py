"""Reads back what was recorded of a run.

In: a run id and where it lives. Out: a `RunRecord` and what happened beside it. Guarantees: the full record where there
is one; else the points in MLflow's metric tables, all of them, with infinities where the store could only keep the
largest number; one sentence that says what to do when there is neither.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import mlflow
import numpy as np
import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.artifacts.folders import (
    EVENTS_FOLDERS,
    LAYER_TABLES_FOLDERS,
    RECORD_FOLDER,
    RECORD_FOLDERS,
)
from mlflow_stability.tracking.artifacts.layer_parts import read_layer_part
from mlflow_stability.tracking.artifacts.record_events import Said, events_order, lines_in, read_line
from mlflow_stability.tracking.artifacts.record_parts import part_order, read_part
from mlflow_stability.tracking.keys import parse_key
from mlflow_stability.tracking.read.record_thinner import RecordThinner
from mlflow_stability.tracking.read.run_record import RunRecord, joined, whole_number
from mlflow_stability.tracking.store.address import strip_credentials
from mlflow_stability.tracking.store.download import no_progress_bar
from mlflow_stability.tracking.store.reachable_client import answering_client
from mlflow_stability.tracking.store.store_errors import not_mlflow, sentence, store_trouble
from mlflow_stability.vocabulary.measured import LayerTable, Signal
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.text import chart_order

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)
_AS_GOOD_AS_INFINITE = 1.79e308  # what MLflow's databases make of an infinity
_COUNT = "nonfinite_values"
_COUNTED = ("loss", "grad_norm")
"""What it counts; its values that are not finite are no points of a chart."""


class RunReader:
    """Reader of one run."""

    def __init__(self, run_id: str, tracking_uri: str | None = None, client: MlflowClient | None = None) -> None:
        self.run_id = run_id
        self.left_out: list[str] = []
        """The files, and lines of files, that could not be read."""
        self._uri = tracking_uri or mlflow.get_tracking_uri()
        self._client = client or answering_client(tracking_uri)
        try:
            self._run = self._found(run_id)
        except RunNotFoundError:
            raise RunNotFoundError(
                f"No run {run_id!r} at {strip_credentials(self._uri)}. Check the tracking URI; the default is "
                "MLFLOW_TRACKING_URI."
            ) from None
        if self._run.info.run_id.lower() != run_id.lower():
            raise not_mlflow(self._uri)
        self.run_id = str(self._run.info.run_id)

    def _found(self, run_id: str) -> Run:
        """The run of this id; in small letters, where there is none in those that were typed."""
        with store_trouble(f"read run {run_id}"):
            try:
                return self._client.get_run(run_id)
            except MlflowException:
                if run_id == run_id.lower():
                    raise
                return self._client.get_run(run_id.lower())

    @property
    def is_deleted(self) -> bool:
        """Whether its owner deleted it; it stays until MLflow's garbage is collected."""
        return str(self._run.info.lifecycle_stage) == "deleted"

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the run."""
        return dict(self._run.data.tags)

    @property
    def params(self) -> dict[str, str]:
        """Its parameters."""
        return dict(self._run.data.params)

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self._run.info.run_name or self.run_id)

    @property
    def status(self) -> str:
        """MLflow's word for how it stands: ``RUNNING``, ``FINISHED``."""
        return str(self._run.info.status)

    @property
    def metric_keys(self) -> list[str]:
        """The keys of all its metrics, those of the main charts first."""
        return sorted(self._run.data.metrics, key=chart_order)

    def record(self) -> RunRecord:
        """Every value, or at least the points that MLflow's metric tables have."""
        found = self.full_record()
        if found is None:
            found = self.metric_points()
        if found is None:
            raise RunNotFoundError(
                f"Run {self.run_id} has no data of mlflow-stability: no file in {RECORD_FOLDER} and no metric "
                "stability/…. Was autolog() on? Shortly after the end of a run its data may still be on the "
                "way. `mlflow-stability sync` delivers what was left behind."
            )
        return found

    def full_record(self) -> RunRecord | None:
        """The Parquet record; None where there is none."""
        parts = [part for _, part in self._files(RECORD_FOLDERS, part_order, lambda _, file: read_part(file))]
        return joined(parts) if parts else None

    def layer_tables(self) -> list[tuple[int, LayerTable]]:
        """The tables of gradients and weights by layer, each with the number of its recording."""
        parts = self._files(LAYER_TABLES_FOLDERS, part_order, lambda _, file: read_layer_part(file))
        return [(recording, table) for (recording, _), tables in parts for table in tables]

    def thinned_record(self, most: int, events: Iterable[Finding]) -> RunRecord | None:
        """The same with about `most` values at the most, and everything that was measured around events."""
        thinner = RecordThinner(most, events)
        self._files(RECORD_FOLDERS, part_order, lambda _, file: thinner.add(read_part(file)))
        return thinner.record()

    def said(self) -> list[tuple[int, Said]]:
        """Events, resets, gaps, notes, openings and closings, each with the number of its recording."""

        def lines(path: str, file: Path) -> list[Said]:
            found = []
            for number, line in enumerate(lines_in(file.read_text(encoding="utf-8")), start=1):
                try:
                    said = read_line(line)
                except ValueError as error:  # of a run that is still being written, the last one
                    self._leave_out(f"line {number} of {path}", error)
                    continue
                if said is not None:
                    found.append(said)
            return found

        files = self._files(EVENTS_FOLDERS, events_order, lines)
        return [(recording, said) for (recording, _), found in files for said in found]

    def metric_points(self, quantities: Collection[str] = ()) -> RunRecord | None:
        """The points in MLflow's metric tables; None where there are none of ours.

        With `quantities` only those of the whole model. A loss or gradient norm that has no point where the count of
        non-finite values rose was one of them: NaN.
        """
        signals: dict[Signal, int] = {}
        rows: list[tuple[int, int, float, int, float]] = []  # recording, step, time, signal, value
        for key in self.metric_keys:
            known = parse_key(key)
            if known is None:
                continue
            section, signal = known
            if quantities and (signal.place or signal.quantity not in (*quantities, _COUNT)):
                continue
            recording = int(section.rpartition("_")[2]) - 1 if "_" in section else 0
            with store_trouble(f"read metric {key}"):
                history = self._client.get_metric_history(self.run_id, key)
            number = signals.setdefault(signal, len(signals))
            rows.extend(
                (recording, whole_number(each.step), whole_number(each.timestamp) / 1000, number, _infinite(each.value))
                for each in history
            )
        if not rows:
            return None
        rows += _nonfinite_points(rows, signals)
        rows.sort()
        recordings, steps, times, numbers, values = zip(*rows, strict=True)
        return RunRecord(
            tuple(signals),
            np.asarray(recordings, np.int32),
            np.zeros(len(rows), np.int32),
            np.asarray(steps, np.int64),
            np.asarray(times, np.float64),
            np.asarray(numbers, np.int32),
            np.asarray(values, np.float64),
            complete=False,
        )

    def file_names(self, folder: str) -> list[str]:
        """The names of what lies in an artifact folder; none where there is no such folder."""
        with store_trouble(f"list the files in {folder} of run {self.run_id}"):
            return [PurePosixPath(each.path).name for each in self._client.list_artifacts(self.run_id, folder)]

    def fetched(self, path: str, read: Callable[[Path], _T]) -> _T:
        """An artifact, as `read` gives it; the file itself is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
            with store_trouble(f"download {path}"), no_progress_bar():
                file = Path(self._client.download_artifacts(self.run_id, path, room))
            return read(file)

    def _files(
        self, folders: Sequence[str], order: Callable[[str], tuple[int, int] | None], read: Callable[[str, Path], _T]
    ) -> list[tuple[tuple[int, int], _T]]:
        """The files of artifact folders, read one after the other in their order."""
        wanted = sorted(
            (place, f"{folder}/{name}")
            for folder in folders
            for name in self.file_names(folder)
            if (place := order(name))
        )
        found = []
        for place, path in wanted:
            try:
                found.append((place, self.fetched(path, partial(read, path))))
            except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
                # A run that is still being written to can show a file that is half there.
                self._leave_out(path, error)
        return found

    def _leave_out(self, what: str, error: Exception) -> None:
        self.left_out.append(what)
        _logger.warning("Skipped %s: %s", what, sentence(error))


def _nonfinite_points(
    rows: Sequence[tuple[int, int, float, int, float]], signals: Mapping[Signal, int]
) -> list[tuple[int, int, float, int, float]]:
    """The losses and gradient norms that have no point because they were not finite."""
    found: list[tuple[int, int, float, int, float]] = []
    for count, number in signals.items():
        if count.quantity != _COUNT:
            continue
        risen, before = [], (-1, 0.0)
        for recording, step, when, _, value in sorted(row for row in rows if row[3] == number):
            if value > (before[1] if before[0] == recording else 0.0):
                risen.append((recording, step, when))
            before = recording, value
        for signal in (replace(count, quantity=quantity) for quantity in _COUNTED):
            if signal in signals:
                known = {(recording, step) for recording, step, _, mine, _ in rows if mine == signals[signal]}
                found += [(*each, signals[signal], math.nan) for each in risen if each[:2] not in known]
    return found


def _infinite(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) >= _AS_GOOD_AS_INFINITE else value
