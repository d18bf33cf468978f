"""Writes TensorBoard event files, with TensorBoard's own classes and without TensorFlow.

Guarantees: a writer that goes on where another one was killed cuts off what that one wrote without keeping it, so that
no point is there twice.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from operator import mul
from pathlib import Path
from typing import Any

from mlflow_stability.alerts.metrics.scalar_writer import LayerHistogram, MirroredRun, Scalar

FOLDER = "runs"
"""Where TensorBoard's users keep their runs."""


class TensorBoardWriter:
    """One run, in a folder of its own name."""

    def __init__(self, target: str, run: MirroredRun, saved: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.histogram_pb2 import HistogramProto
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._histogram = Event, Summary, HistogramProto
        folder = Path(run.directory, target or FOLDER, f"{run.name}-{run.run_id[:8]}" if run.name else run.run_id)
        known = saved.get("file")
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.mlflow-stability"
        self._path = Path(known) if known else folder / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        if known:
            self._file.truncate(saved["size"])
            self._file.seek(0, os.SEEK_END)
        else:
            self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
            self._file.flush()

    def write(self, scalars: Sequence[Scalar]) -> None:
        """Append one event for each step."""
        for (step, when), several in groupby(scalars, key=lambda each: (each.step, each.time)):
            values = [self._summary.Value(tag=each.key, simple_value=each.value) for each in several]
            event = self._event(wall_time=when, step=step, summary=self._summary(value=values))
            self._records.write(event.SerializeToString())
        self._file.flush()

    def write_histograms(self, histograms: Sequence[LayerHistogram]) -> None:
        """Append one event for each histogram."""
        for histogram in histograms:
            edges, counts = histogram.edges, histogram.counts
            centers = [(low + high) / 2 for low, high in pairwise(edges)]
            drawn = self._histogram(
                min=edges[0],
                max=edges[-1],
                num=sum(counts),
                sum=sum(map(mul, counts, centers)),
                sum_squares=sum(count * center**2 for count, center in zip(counts, centers, strict=True)),
                bucket_limit=edges[1:],
                bucket=counts,
            )
            summary = self._summary(value=[self._summary.Value(tag=histogram.key, histo=drawn)])
            event = self._event(wall_time=histogram.time, step=histogram.step, summary=summary)
            self._records.write(event.SerializeToString())
        self._file.flush()

    def saved(self) -> Mapping[str, Any]:
        """The file, and how much of it counts."""
        return {"file": str(self._path), "size": self._path.stat().st_size}

    def close(self) -> None:
        """Close the file."""
        self._file.close()
