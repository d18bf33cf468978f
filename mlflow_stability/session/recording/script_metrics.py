"""Finds the validation losses among the metrics that the script logs itself, so that they are judged while it trains.

In: what was heard at MLflow's client and from trainers of other libraries, from any thread. Out: on request, the
validation losses of one run, in their order. Guarantees: what is asked of the names is what `diagnose` asks of them
afterwards; a name keeps its meaning for the length of a run; a value that a trainer has and logs to MLflow as well is
given once; at most `MOST_WAITING` values wait, the oldest give way.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from mlflow_stability.session.recording.trainer_metrics import TrainerMetrics
from mlflow_stability.tracking.in_process import LoggedMetric, UserMetrics
from mlflow_stability.vocabulary.measured import Signal, SignalType
from mlflow_stability.vocabulary.text import meanings_of

SIGNALS = (
    SignalType(
        "val_loss",
        "validation loss logged last by the script or its trainer; in the record alone",
        "loss_statistics",
        interval="every step",
        exported="llm_validation_loss",
    ),
    SignalType(
        "val_loss_step", "step that the script gave with it", "loss_statistics", unit="{step}", interval="every step"
    ),
)

MOST_WAITING = 10_000
MOST_REMEMBERED = 1_000
"""Of so many values it is known whether the trainer, MLflow or both have told them."""
MOST_NAMES = 2_000
"""A script that makes up a new name at every step has no meanings to be found out after this many."""
_VALIDATION = "val_loss"
_THEIR_STEP = "val_loss_step"


@dataclass(frozen=True, slots=True)
class ScriptMetric:
    """One validation loss that the script has logged, and the step that it gave."""

    signals: tuple[Signal, ...]
    values: tuple[float, ...]
    time: float
    name: str = ""
    """The name that was asked for; one that is no validation loss has no signals, and is not judged."""


class ScriptMetrics:
    """The validation losses of the run that is being recorded."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[LoggedMetric, float, float]] = deque(maxlen=MOST_WAITING)
        """What is to be taken."""
        self.is_on = False
        """Whether it listens."""
        self.wanted = ""
        """The name of a metric that is asked for, whatever it means; ``val_loss`` is the validation loss too."""
        self._client = UserMetrics(self._heard)
        self._trainers = TrainerMetrics(self._heard)
        self._run_id = ""
        self._told: dict[tuple[str, str], int] = {}
        """By name and value how many times more the trainer has told it than MLflow's client."""
        self._layouts: dict[str, tuple[Signal, ...] | None] = {}
        """For each name of this run the signals that it becomes; None where it is no validation loss."""

    def install(self) -> None:
        """Begin to listen, once the script has imported MLflow."""
        self._client.install()
        self.is_on = self._client.is_on

    def install_trainers(self) -> None:
        """Listen to the trainers that the script has imported since the last call."""
        self._trainers.install()

    def remove(self) -> None:
        """Leave MLflow and trainers as they were."""
        self._client.remove()
        self._trainers.remove()
        self.is_on = False

    def take(self, run_id: str | None) -> list[ScriptMetric]:
        """What was heard of this run since the last time; what was logged to other runs is let go.

        Raises what went wrong at listening, here and not in the script's call.
        """
        failure = self._client.failure or self._trainers.failure
        if failure is not None:
            raise failure
        taken = [self.waiting.popleft() for _ in range(len(self.waiting))]
        if run_id is None:  # nobody knows the run yet, so that what was logged to one has to wait
            self.waiting.extendleft(reversed([each for each in taken if each[0].run_id is not None]))
        mine = [each for each in taken if each[0].run_id in (run_id, None)]
        if run_id != self._run_id:
            if self._run_id:  # else it is the same one, whose name was not known
                self._layouts, self._told = {}, {}
            self._run_id = run_id or ""
        self._learn([metric.key for metric, _, _ in mine])
        return [
            _reading(layout or (), value, metric.step, when, self._asked(metric.key, layout or ()))
            for metric, value, when in mine
            if ((layout := self._layouts.get(metric.key)) or metric.key == self.wanted) and self._is_new(metric, value)
        ]

    def _is_new(self, metric: LoggedMetric, value: float) -> bool:
        """Whether it was not told by the other one of trainer and MLflow before."""
        known, one = (metric.key, f"{value:.6g}"), 1 if metric.run_id is None else -1
        more = self._told.pop(known, 0)
        self._told[known] = more + one
        if len(self._told) > MOST_REMEMBERED:
            del self._told[next(iter(self._told))]
        return more * one >= 0

    def _asked(self, name: str, layout: tuple[Signal, ...]) -> str:
        is_validation = self.wanted == _VALIDATION and layout[:1] == (Signal(_VALIDATION),)
        return self.wanted if is_validation or name == self.wanted else ""

    def _heard(self, metric: LoggedMetric) -> None:
        """Runs in the thread that logs."""
        is_known = metric.run_id in (self._run_id, None) and self._layouts.get(metric.key, ()) is None
        if is_known and metric.key != self.wanted:
            return  # known, and no validation loss: most are
        self.waiting.append((metric, _number(metric.value), time.time()))

    def _learn(self, names: list[str]) -> None:
        """Find out what new names mean, beside all that are known: which loss is the whole one depends on them."""
        new = [name for name in dict.fromkeys(names) if name not in self._layouts]
        if not new or len(self._layouts) + len(new) > MOST_NAMES:
            return
        meanings = meanings_of([*self._layouts, *new], all_known=False)
        taken = {layout[0] for layout in self._layouts.values() if layout}
        for name in new:
            meaning = meanings[name]
            wanted = meaning.known and meaning.quantity == _VALIDATION and not meaning.duplicate_of
            if wanted and meaning.signal not in taken:
                taken.add(meaning.signal)
                self._layouts[name] = (meaning.signal, Signal(_THEIR_STEP, meaning.place))
            else:
                self._layouts[name] = None


def _number(value: Any) -> float:
    """As MLflow takes it, which has asked the same of the value before: a device is not waited for again."""
    return float(value.item() if hasattr(value, "item") else value)


def _reading(layout: tuple[Signal, ...], value: float, step: int | None, when: float, name: str) -> ScriptMetric:
    if step is None or not layout:
        return ScriptMetric(layout[:1], (value,), when, name)
    return ScriptMetric(layout, (value, float(step)), when, name)
