"""Hears the metrics that a script logs to MLflow itself, in the training process, at the client's own calls.

In: calls of `MlflowClient.log_metric` and `MlflowClient.log_batch`, through which all others go: `mlflow.log_metric`
and `log_metrics`, Lightning's logger, Hugging Face's Trainer, MLflow's own autologging. Out: what was logged, call by
call. Guarantees: MLflow is not imported here and no server is asked; results and exceptions are MLflow's own, and a
call that failed was not heard; after `remove`, MLflow's class holds the very functions that it held before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

CLIENT = "mlflow.tracking.client"
"""The module whose class is listened to; not there as long as the script has not imported MLflow."""


@dataclass(frozen=True, slots=True)
class LoggedMetric:
    """One value that the script has logged."""

    run_id: str | None
    """None where it was told to no run, but by a trainer of the training that is being recorded."""
    key: str
    value: Any
    """As the script gave it: a number, or a tensor that holds one."""
    step: int | None
    """The script's own step; None where it gave none."""


class UserMetrics:
    """Listens to MLflow's client; `on_metric` is called in the thread that logs, and must be quick."""

    def __init__(self, on_metric: Callable[[LoggedMetric], None]) -> None:
        self.failure: Exception | None = None
        """Why nothing is heard any more; whoever looks after us tells it where it does no harm."""
        self._on_metric = on_metric
        self._undo: list[Callable[[], None]] = []
        self._listens = [False]

    def install(self) -> None:
        """Begin, once the script has imported MLflow; until then this costs a look."""
        if self._undo:
            return
        kind: Any = getattr(sys.modules.get(CLIENT), "MlflowClient", None)
        if kind is None:
            return
        self._listens = [True]
        self._listen(kind, "log_metric", _metric)
        self._listen(kind, "log_batch", _batch)

    @property
    def is_on(self) -> bool:
        """Whether it listens."""
        return bool(self._undo)

    def remove(self) -> None:
        """Leave MLflow as it was."""
        self._listens[0] = False
        while self._undo:
            self._undo.pop()()

    def _listen(self, kind: Any, name: str, said: Callable[..., Iterator[LoggedMetric]]) -> None:
        original = getattr(kind, name, None)
        if original is None:
            return
        listens = self._listens

        @functools.wraps(original)
        def heard(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if listens[0]:
                self._hear(said, args[1:], kwargs)
            return result

        def undo() -> None:
            if vars(kind).get(name) is heard:  # else somebody has wrapped ours: it stays as a plain call
                setattr(kind, name, original)

        setattr(kind, name, heard)
        self._undo.append(undo)

    def _hear(self, said: Callable[..., Iterator[LoggedMetric]], args: Any, kwargs: Any) -> None:
        try:
            for metric in said(*args, **kwargs):
                self._on_metric(metric)
        except Exception as error:  # the script's own metric was logged, and that is what it asked for
            self._listens[0] = False
            self.failure = error


def _metric(
    run_id: str, key: str, value: Any, _timestamp: Any = None, step: int | None = None, *_: Any, **__: Any
) -> Iterator[LoggedMetric]:
    """What a call of `log_metric` logged."""
    yield LoggedMetric(run_id, key, value, step)


def _batch(run_id: str, metrics: Any = (), *_: Any, **__: Any) -> Iterator[LoggedMetric]:
    """What a call of `log_batch` logged; of an iterator nothing is left to be heard."""
    if isinstance(metrics, list | tuple):
        for each in metrics:
            yield LoggedMetric(run_id, each.key, each.value, each.step)
