"""Trains in this process under `autolog()`, and judges the training as all who could see it would.

In: a training, which is a function of a seed. Out: what five views find in it: live, as it was recorded, and by
what three scripts might have logged: every step, every tenth loss, and the mean loss of thirty epochs. Layers are
measured every 20 steps, for such trainings are short. What tells of the machine rather than of the training (step
times, throughput) is left out: others use it meanwhile.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from scenarios.flown_history import log_of, recorded_in
from scenarios.flying import flying
from zoo.healthy.data import REWARDS, NotLearntError

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.journal.journal import Record
from mlflow_stability.kinds.panel import replay
from mlflow_stability.session.courier_link import CourierLink
from mlflow_stability.vocabulary.measured.signal import Series
from mlflow_stability.vocabulary.result import Finding, Severity, Source
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

OF_THE_MACHINE = frozenset(
    {"step_time_increase", "throughput_drop", "memory_pressure", "low_mfu", "low_gpu_utilization"}
)
VIEWS = ("live", "recorded", "every step", "every tenth", "epochs")
EPOCHS = 30
OFTEN = {"layers_every_n_steps": 20, "attention_every_n_steps": 40}
Training = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Found:
    """One finding."""

    kind: str
    severity: Severity
    step: int
    message: str


@dataclass(slots=True)
class Judged:
    """What was found in one training, by view."""

    findings: dict[str, list[Found]] = field(default_factory=lambda: {view: [] for view in VIEWS})
    failure: str = ""
    """Why it is no healthy training, should it be none."""
    steps: int = 0
    seconds: float = 0.0

    def kinds(self, view: str, least: Severity = Severity.WARNING) -> Counter[str]:
        return Counter(finding.kind for finding in self.findings[view] if finding.severity >= least)

    def names(self, expected: Sequence[str]) -> bool:
        """Whether one of these was found, live or in the record; what is only for information counts as well."""
        return any(finding.kind in expected for view in ("live", "recorded") for finding in self.findings[view])


@dataclass(slots=True)
class Trained:
    """What came of one training."""

    recordings: list[list[Record]]
    failure: str
    seconds: float
    rewards: tuple[float, ...]
    """Of an agent: what it earned."""


def trained(training: Training, seed: int) -> Trained:
    """Train it in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    REWARDS.clear()
    failure, began = "", time.process_time()
    undelivered = patch.object(CourierLink, "start")  # what is judged is the journal; delivery would want the processor
    with tempfile.TemporaryDirectory() as folder, undelivered, flying(Path(folder), **OFTEN) as flown:
        try:
            training(seed)
        except NotLearntError as error:
            failure = str(error)
    return Trained(flown.recordings, failure, time.process_time() - began, tuple(REWARDS))


def judged(training: Trained, *, anew: bool = False) -> Judged:
    """Judge every recording of it again: with the detectors of today, and not those that watched it."""
    result = Judged(failure=training.failure, seconds=training.seconds)
    for records in training.recordings:
        if anew:
            text = [
                record
                for record in records
                if not (isinstance(record, Finding) and record.source is not Source.REPORTED)
            ]
            records = [*text, *replay(records)]
        _judge(records, training.rewards, result)
    return result


def _judge(records: list[Record], rewards: tuple[float, ...], result: Judged) -> None:
    """Add what is found in one recording."""
    run = recorded_in(records)
    losses = run.of("loss")
    if not losses:
        return
    places = {loss.meaning.place for loss in losses}
    kept = [
        metric.name
        for metric in run.metrics
        if metric.meaning.place in places and metric.meaning.quantity in ("loss", "grad_norm", "learning_rate")
    ]
    names = [loss.name for loss in losses]
    result.steps = max([result.steps, *(int(loss.series.steps.max()) for loss in losses)])
    events = [record for record in records if isinstance(record, Finding)]
    views = {
        "live": [Found(event.kind, event.severity, event.step, event.message) for event in events],
        "recorded": said_of(run),
        "every step": said_of(with_rewards(log_of(run, *kept), rewards)),
        "every tenth": said_of(with_rewards(log_of(run, *names, every=10), rewards)),
        "epochs": said_of(with_rewards(in_epochs(log_of(run, *names)), rewards)),
    }
    for view, outcome in views.items():
        result.findings[view] += [finding for finding in outcome if finding.kind not in OF_THE_MACHINE]


def said_of(history: RunHistory) -> list[Found]:
    return [
        Found(finding.kind, finding.severity, finding.start, finding.message)
        for finding in diagnosis_of(history).findings
    ]


def in_epochs(run: RunHistory) -> RunHistory:
    """The mean of each thirtieth of the training, as a script prints it at the end of an epoch."""
    metrics = []
    for metric in run.metrics:
        series = metric.series
        parts = [part for part in np.array_split(np.arange(len(series)), EPOCHS) if len(part)]
        ends = [part[-1] for part in parts]
        means = np.array([series.values[part].mean() for part in parts])
        numbers = np.arange(1, len(parts) + 1)
        thinned = Series(series.signal, numbers, means, series.attempts[ends], series.times[ends])
        metrics.append(replace(metric, series=thinned))
    return replace(run, metrics=tuple(metrics))


def with_rewards(run: RunHistory, rewards: tuple[float, ...]) -> RunHistory:
    """With what an agent earned, as its script logs it."""
    if not rewards:
        return run
    last = max(int(metric.series.steps.max()) for metric in run.metrics)
    steps = np.unique(np.linspace(1, last, min(last, len(rewards))).astype(np.int64))
    values = np.array([part.mean() for part in np.array_split(np.array(rewards), len(steps))])
    nothing = np.zeros(len(steps))
    meaning = metric_meanings(["episode_reward"])["episode_reward"]
    series = Series(meaning.signal, steps, values, nothing.astype(np.int64), nothing)
    return replace(run, metrics=(*run.metrics, Metric("episode_reward", meaning, series)))


def words(kinds: Counter[str]) -> str:
    return ", ".join(kind if count == 1 else f"{kind} {count}" for kind, count in kinds.most_common())
