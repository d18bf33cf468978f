"""Mirrors, the tools that ``autolog(mirrors=...)`` names: their settings, and the writers of TensorBoard and W&B.

A tool that is not installed is refused at once, with how to install it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby, pairwise
from operator import mul
from pathlib import Path
from typing import Any

from mlflow_stability.alerts.message import RunLink
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import did_you_mean, or_list, short_repr

OTEL, TENSORBOARD, WANDB = "otel", "tensorboard", "wandb"
_NEEDS = {
    TENSORBOARD: ("tensorboard", "TensorBoard"),
    WANDB: ("wandb", "Weights & Biases"),
    OTEL: ("opentelemetry.exporter.otlp.proto.http", "OpenTelemetry's exporter"),
}
"""Package and display name of each tool."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """One tool that receives the same numbers as MLflow."""

    tool: str
    target: str = ""  # after the colon: an address, a folder, a project; empty for the tool's default


def read_mirrors(given: Any) -> tuple[Mirror, ...]:
    """Read one mirror or several: texts such as ``tensorboard:runs/`` and ``wandb``."""
    several = (given,) if isinstance(given, str | Mirror) else given
    if several is None or not isinstance(several, Iterable) or isinstance(several, bytes | Mapping):
        raise SettingsError(
            f"mirrors must be texts such as 'tensorboard:runs/' and 'wandb', one or several; got {short_repr(given)}."
        )
    mirrors = tuple(map(_mirror, several))
    tools = [mirror.tool for mirror in mirrors]
    repeated = next((tool for tool in tools if tools.count(tool) > 1), None)
    if repeated is not None:
        raise SettingsError(f"mirrors has {repeated!r} twice; each tool can be used once.")
    return mirrors


def _mirror(given: Any) -> Mirror:
    if isinstance(given, Mirror):
        return given
    tool, _, target = given.partition(":") if isinstance(given, str) else ("", "", "")
    if tool not in _NEEDS:
        hint = did_you_mean(tool, _NEEDS)
        raise SettingsError(
            f"mirrors can be {or_list(map(repr, _NEEDS))}, with a target behind a colon; got {short_repr(given)}.{hint}"
        )
    package, title = _NEEDS[tool]
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # a parent package is missing
        spec = None
    if spec is None or spec.origin is None:  # a folder without code is no package
        raise SettingsError(
            f"mirrors={given!r} needs {title}, which is not installed here: pip install 'mlflow-stability[{tool}]'."
        )
    return Mirror(tool, target)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number, with its key in MLflow."""

    key: str
    step: int
    value: float
    time: float


@dataclass(frozen=True, slots=True)
class LayerHistogram:
    """The gradients or weights of one layer at one step."""

    key: str
    step: int
    time: float
    edges: Sequence[float]  # edges of the bins: one more than `counts`
    counts: Sequence[int]


FOLDER = "runs"  # usual folder of TensorBoard runs


class TensorBoardWriter:
    """Writes TensorBoard event files of one run, with TensorBoard's own classes and without TensorFlow.

    `saved` returns what a new writer needs to continue, as plain JSON. One that continues after another was killed cuts
    off what that one wrote after its last `saved`, so that no point is there twice.
    """

    def __init__(self, target: str, run: RunLink, directory: str, saved: Mapping[str, Any]) -> None:
        """`directory`: working directory of the training, to which relative folders refer."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.histogram_pb2 import HistogramProto
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._histogram = Event, Summary, HistogramProto
        name_of_run = f"{run.name}-{run.run_id[:8]}" if run.name else f"run-{run.run_id}"
        # Who can rename the run on the server does not choose a path.
        folder = Path(directory, target or FOLDER, name_of_run.replace("/", "_").replace("\0", "_"))
        saved_file = saved.get("file")
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.mlflow-stability"
        self._path = Path(saved_file) if saved_file else folder / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        if saved_file:
            self._file.truncate(saved["size"])
            self._file.seek(0, os.SEEK_END)
        else:
            self._records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
            self._file.flush()

    def write(self, scalars: Sequence[Scalar]) -> None:

        for (step, when), scalars_of_step in groupby(scalars, key=lambda scalar: (scalar.step, scalar.time)):
            values = [self._summary.Value(tag=scalar.key, simple_value=scalar.value) for scalar in scalars_of_step]
            event = self._event(wall_time=when, step=step, summary=self._summary(value=values))
            self._records.write(event.SerializeToString())
        self._file.flush()

    def write_histograms(self, histograms: Sequence[LayerHistogram]) -> None:
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

        return {"file": str(self._path), "size": self._path.stat().st_size}

    def close(self) -> None:
        self._file.close()


PROJECT = "mlflow-stability"
STEP = "stability/step"


class WandbWriter:
    """Writes one Weights & Biases run, offline unless ``WANDB_MODE`` says otherwise; ``wandb sync`` uploads it.

    It has the id and the name of the MLflow run. Steps are values of the key ``stability/step``: W&B's own step may
    never fall, and some last values belong to earlier steps.
    """

    def __init__(self, target: str, run: RunLink, directory: str, _: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=target or PROJECT,
            id=run.run_id,
            name=run.name or None,
            dir=directory or None,
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
        )
        self._run.define_metric("*", step_metric=STEP, summary="min,mean,last")

    def write(self, scalars: Sequence[Scalar]) -> None:

        for step, scalars_of_step in groupby(scalars, key=lambda scalar: scalar.step):
            self._run.log({STEP: step, **{scalar.key: scalar.value for scalar in scalars_of_step}})

    def write_histograms(self, histograms: Sequence[LayerHistogram]) -> None:
        import wandb

        for step, of_step in groupby(histograms, key=lambda histogram: histogram.step):
            drawn = {
                histogram.key: wandb.Histogram(np_histogram=(histogram.counts, histogram.edges))
                for histogram in of_step
            }
            self._run.log({STEP: step, **drawn})

    def saved(self) -> Mapping[str, Any]:
        """Return nothing: W&B finds its run by the id."""
        return {}

    def close(self) -> None:
        self._run.finish()
