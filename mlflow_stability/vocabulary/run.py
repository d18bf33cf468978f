"""One run: what was recorded or imported, and the milestones in its journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.signal import Series
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.text.metric_names import Meaning

RUN_STATUS = {
    "finished": "FINISHED",
    "crashed": "FAILED",
    "exited": "FAILED",
    "stopped": "FAILED",
    "out_of_memory": "FAILED",
    "interrupted": "KILLED",
    "killed": "KILLED",
    "unknown": "KILLED",
}
"""MLflow's status of a run for each way in which a training can end, as the tag ``stability.ended`` names it."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A recording begins: which process trains, and for which run."""

    recording: str  # globally unique name of this recording
    pid: int
    process_started: float
    """Start of the training process by the wall clock, in journals of older versions; 0 where the session's folder
    identifies the process."""
    host: str
    time: float
    tracking_uri: str | None = None  # store of the run, without credentials; None: MLflow's default in `directory`
    directory: str = ""  # working directory of the training, to which relative tracking URIs refer
    run_id: str | None = None  # the active run when the recording began; None: the courier starts one
    resumed: bool = False  # whether ``MLFLOW_RUN_ID`` named the run, which the courier resumes and ends like its own
    experiment_id: str | None = None  # where the courier starts its run; None: MLflow's default
    first_step: int = 1  # first step of this recording; above 1 where the run has steps already
    earlier: list[str] = field(default_factory=list)
    """Recordings of the same process in the same run that ended before, at least the newest of them. Their steps come
    before those of this one; it is not a second process that trains beside them."""
    log_every_n_steps: int = 10
    tags: dict[str, str] = field(default_factory=dict)  # the user's ``extra_tags``
    world_size: int = 1
    job: str = ""  # the launcher's job that this training is an attempt of; empty where nothing would restart it
    restarts: int = 0  # number of earlier attempts of the job
    interactive: bool = False  # whether a person types the training, so that a pause is no stall
    layer_metrics: Literal["", "blocks", "parameters"] = ""
    """Which signals of layers become metrics: none, one for each block of the model, or all."""
    system_metrics: bool = False  # whether to enable MLflow's system metrics
    detectors: str = ""  # detectors with all thresholds, as `catalog.describe` wrote them; replay builds the same ones
    schema: int = 1


@dataclass(frozen=True, slots=True)
class Note:
    """A fact about the recording that becomes the tag ``stability.<key>`` of its run."""

    key: str
    value: str
    step: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Fact:
    """A parameter of the run: something that distinguishes this training, or is needed to repeat it."""

    key: str  # the run's parameter is ``stability.<key>``: ``learning_rate``, ``group_1.weight_decay``, ``git.commit``
    value: str  # of any length; delivery cuts it to what the store accepts
    step: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Reset:
    """The training was rolled back: detectors, and a replay, forget all before this step but the learning rates."""

    step: int
    attempt: int
    reason: str
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Gap:
    """Steps that were trained but not recorded."""

    first_step: int
    last_step: int
    reason: str
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Closing:
    """A recording ends. A killed process writes no closing."""

    outcome: str  # a key of `RUN_STATUS`
    detail: str = ""
    step: int = 0
    time: float = 0.0
    run_was_active: bool = True  # whether the run was still active then; one that its owner had ended keeps its status


@dataclass(frozen=True, slots=True)
class Returned:
    """The thread that trained has ended and its process lives on: the end of the recording, unless a step follows."""

    outcome: str  # as in `Closing`
    detail: str = ""
    step: int = 0
    time: float = 0.0
    run_was_active: bool = True


MAX_LATE_POINTS = 3  # number of points that may be logged late, and by how many usual step distances


def number_attempts(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the attempt of each point, from 0, of the steps of one series in the order in which they were logged.

    A step that goes back is a restart, or another run in the same file. Points that overtook each other on their way to
    the log, because several threads write, are no restart.
    """
    attempts = np.zeros(len(steps), np.int64)
    distances = np.diff(steps)
    usual = float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0
    start, attempt = 0, 0
    for index in np.flatnonzero(distances < 0) + 1:
        earlier = steps[start:index]
        highest = int(earlier.max())
        if steps[index] >= highest:
            continue  # came back from an overtaken point
        next_steps = steps[index : index + MAX_LATE_POINTS + 1]
        is_late = highest - int(steps[index]) <= MAX_LATE_POINTS * usual and bool((next_steps > highest).any())
        if is_late and not (earlier == steps[index]).any():
            continue
        attempt += 1
        attempts[index:] = attempt
        start = int(index)
    return attempts


def attempt_order(steps: NDArray[np.int64], attempts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that sort points by attempt and step; points of one step stay in the order of the log."""
    return np.lexsort((steps, attempts)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run as a search of a tracking store lists it."""

    run_id: str
    name: str = ""
    experiment: str = ""
    status: str = ""  # MLflow's status: ``RUNNING``, ``FINISHED``
    started: float = 0.0  # seconds since the epoch; 0 where the store does not say


@dataclass(frozen=True, slots=True)
class RunHead:
    """A run as a tracking store shows it without metric histories: enough to know whether it has changed."""

    run_id: str
    name: str = ""
    finished: bool = False  # whether nothing more is expected of it
    state: str = ""  # digest of its store, its end, its parameters and tags, and the last point of each metric


DAMAGED = "Some of what was recorded cannot be read and is missing here"
"""Start of the note on a history that is incomplete, so that conclusions may change the next time it is read."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric: its name in the script, what it is taken for, and its values."""

    name: str  # as it was logged; may hold control characters, so whoever shows it uses `visible`
    meaning: Meaning
    series: Series  # oldest first; `series.signal` is `meaning.signal`. NaN is only where the run logged NaN
    lines: NDArray[np.int64] | None = None  # the line of the log for each value, counted from 1, if it has lines
    of_the_script: bool = False  # whether the script logged it beside the recorded signals, with its own step count


@dataclass(frozen=True, slots=True, eq=False)
class RunHistory:
    """Everything known about one run, recorded, logged to MLflow or read from a file: the input of a diagnosis.

    Steps are those of the source. Where they go back (a restart, several runs in one file) the attempt rises, so that
    within an attempt a series is a function of its step.
    """

    source: str  # the run id or path, as it was asked for; `source` in the JSON
    name: str  # the run's name, or the file's name
    format: str  # ``recorded``, ``mlflow``, or the name of the file format: ``lightning_csv``
    basis: str  # what was read, in words: "the full record (12,000 steps)"
    metrics: tuple[Metric, ...] = ()
    events: tuple[Finding, ...] | None = None  # findings of the detectors during training; None if it was not recorded
    gaps: tuple[Gap, ...] = ()
    outcome: str = ""  # a key of `RUN_STATUS`; ``running``; empty where it is unknown
    outcome_detail: str = ""  # the exception, the signal, the exit status
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What is odd about the source: "5 runs in one file", "every step is 0, points are numbered instead"."""
    ordinal_steps: bool = False  # whether steps only number the points, because the source has none
    step_unit: str = "step"  # what the source calls a step: ``epoch`` where it counts nothing else
    choice: tuple[str, ...] = ()  # why these metrics are its losses, where the names alone do not decide
    reported: tuple[Finding, ...] = ()  # findings that the log itself states, such as ``step_skipped``
    complete: bool = True  # whether every measured value is here; else thinned points, for rules made for them

    @property
    def points(self) -> int:
        """Number of values in all metrics."""
        return sum(len(metric.series) for metric in self.metrics)

    def of(self, quantity: str) -> tuple[Metric, ...]:
        """Return the metrics of this quantity, that of the whole model first."""
        metrics = [metric for metric in self.metrics if metric.meaning.quantity == quantity]
        return tuple(sorted(metrics, key=lambda metric: metric.meaning.place != ""))
