"""Finds the validation losses among the metrics that the script logs itself, so that they are judged while it trains.

In: what was heard at MLflow's client, from any thread. Out: on request, the validation losses of one run, in their
order. Guarantees: what is asked of the names is what `diagnose` asks of them afterwards; a name keeps its meaning for
the length of a run; at most `MOST_WAITING` values wait, the oldest give way.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from mlflow_stability.tracking.in_process.user_metrics import LoggedMetric, UserMetrics
from mlflow_stability.vocabulary.measured import Signal, SignalType
from mlflow_stability.vocabulary.text import meanings_of

SIGNALS = (
    SignalType(
        "val_loss",
        "validation loss that the script logged last; in the record alone, for MLflow has it",
        "loss",
        interval="every step",
        exported="llm_validation_loss",
    ),
    SignalType("val_loss_step", "step that the script gave with it", "loss", unit="{step}", interval="every step"),
)

MOST_WAITING = 10_000
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
        self._ear = UserMetrics(self._heard)
        self._run_id = ""
        self._layouts: dict[str, tuple[Signal, ...] | None] = {}
        """For each name of this run the signals that it becomes; None where it is no validation loss."""

    def install(self) -> None:
        """Begin to listen, once the script has imported MLflow."""
        self._ear.install()
        self.is_on = self._ear.is_on

    def remove(self) -> None:
        """Leave MLflow as it was."""
        self._ear.remove()
        self.is_on = False

    def take(self, run_id: str | None) -> list[ScriptMetric]:
        """What was heard of this run since the last time; what was logged to other runs is let go.

        Raises what went wrong at listening, here and not in the script's call.
        """
        if self._ear.failure is not None:
            raise self._ear.failure
        if run_id is None:  # nobody knows the run yet, so nothing can have been logged to it
            return []
        taken = [self.waiting.popleft() for _ in range(len(self.waiting))]
        mine = [each for each in taken if each[0].run_id == run_id]
        if run_id != self._run_id:
            self._run_id, self._layouts = run_id, {}
        self._learn([metric.key for metric, _, _ in mine])
        return [
            _reading(layout or (), value, metric.step, when, self._asked(metric.key, layout or ()))
            for metric, value, when in mine
            if (layout := self._layouts.get(metric.key)) or metric.key == self.wanted
        ]

    def _asked(self, name: str, layout: tuple[Signal, ...]) -> str:
        is_validation = self.wanted == _VALIDATION and layout[:1] == (Signal(_VALIDATION),)
        return self.wanted if is_validation or name == self.wanted else ""

    def _heard(self, metric: LoggedMetric) -> None:
        """Runs in the thread that logs."""
        is_known = metric.run_id == self._run_id and self._layouts.get(metric.key, ()) is None
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
