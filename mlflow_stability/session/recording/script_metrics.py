"""Find validation losses among the metrics that the script and its trainer log, to judge them during the training.

Guarantees: names mean what they mean to `diagnose` afterwards, for the whole run; a value that a trainer has and logs
to MLflow as well is taken once. Trainers: no library is imported; results and exceptions are the library's own; a
renamed method is left alone; after `remove`, each class is as before.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlflow_stability.probes.hooks.guarded_hooks import HookHandles
from mlflow_stability.tracking.in_process import LoggedMetric, UserMetrics
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

Logged = tuple[Mapping[str, Any], int | None]  # metrics by name, and the trainer's own step or epoch


@dataclass(frozen=True)
class TrainerMethod:
    """A method of a trainer whose calls give metrics."""

    module: str  # looked up among the loaded modules
    owner: str
    name: str
    read: Callable[[Any, Mapping[str, Any], Any], Logged | None]
    """Takes the trainer's object, the arguments by name, and the result."""
    arguments: tuple[str, ...] = ()  # names of the positional arguments


def _lightning(loop: Any, _given: Mapping[str, Any], result: Any) -> Logged | None:
    """Read one validation within `fit`, a dictionary for each data loader; `validate` may be of any model."""
    trainer = loop.trainer
    if trainer.sanity_checking or trainer.state.fn != "fit":
        return None
    return {name: value for metrics in result for name, value in metrics.items()}, trainer.global_step


def _hugging_face(_handler: Any, given: Mapping[str, Any], _result: Any) -> Logged:
    return given["logs"], given["state"].global_step


def _given_with_step(metrics: str, _owner: Any, given: Mapping[str, Any], _result: Any) -> Logged:
    return given[metrics], given.get("step")


def _keras(_callbacks: Any, given: Mapping[str, Any], _result: Any) -> Logged:
    return given.get("logs") or {}, given["epoch"]


def _fastai(recorder: Any, _given: Mapping[str, Any], _result: Any) -> Logged:
    return dict(zip(recorder.metric_names, recorder.log, strict=False)), recorder.log[0]


def _skorch(history: Any, given: Mapping[str, Any], _result: Any) -> Logged:
    return {given["attr"]: given["value"]}, len(history)


def _ultralytics(trainer: Any, _given: Mapping[str, Any], result: Any) -> Logged:
    return result[0] or {}, trainer.epoch


LISTENED = (
    *(
        TrainerMethod(f"{package}.loops.evaluation_loop", "_EvaluationLoop", "run", _lightning)
        for package in ("lightning.pytorch", "pytorch_lightning")
    ),
    *(
        TrainerMethod(
            f"{package}.fabric", "Fabric", "log_dict", partial(_given_with_step, "metrics"), ("metrics", "step")
        )
        for package in ("lightning.fabric", "lightning_fabric")
    ),
    TrainerMethod(
        "transformers.trainer_callback",
        "CallbackHandler",
        "on_log",
        _hugging_face,
        ("args", "state", "control", "logs"),
    ),
    TrainerMethod(
        "accelerate.accelerator", "Accelerator", "log", partial(_given_with_step, "values"), ("values", "step")
    ),
    TrainerMethod("keras.src.callbacks.callback_list", "CallbackList", "on_epoch_end", _keras, ("epoch", "logs")),
    TrainerMethod("fastai.learner", "Recorder", "after_epoch", _fastai),
    TrainerMethod("skorch.history", "History", "record", _skorch, ("attr", "value")),
    TrainerMethod("ultralytics.engine.trainer", "BaseTrainer", "validate", _ultralytics),
    TrainerMethod(
        "ray.train.v2._internal.execution.context",
        "TrainContext",
        "report",
        partial(_given_with_step, "metrics"),
        ("metrics",),
    ),
)


class TrainerMetrics:
    """Observes trainers; `on_metric` is called in the thread that logs, and must be fast."""

    def __init__(self, on_metric: Callable[[LoggedMetric], None]) -> None:
        self.failure: Exception | None = None  # the error that ended observation; raised where it does no harm
        self._on_metric = on_metric
        self._handles = HookHandles()
        self._heard: set[TrainerMethod] = set()

    def install(self) -> None:
        """Observe the libraries loaded since the last call."""
        for method in LISTENED:
            owner = getattr(sys.modules.get(method.module), method.owner, None)
            if method not in self._heard and hasattr(owner, method.name):
                self._heard.add(method)
                self._handles.patch(owner, method.name, partial(self._around, method))

    def remove(self) -> None:
        self._handles.remove()
        self._heard.clear()

    def _around(self, method: TrainerMethod, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.failure is None:
            try:
                given = dict(zip(method.arguments, args[1:], strict=False)) | kwargs
                for metric in _metrics(method.read(args[0], given, result)):
                    self._on_metric(metric)
            except Exception as error:  # the trainer's own call has succeeded
                self.failure = error
        return result


def _metrics(logged: Logged | None) -> Iterator[LoggedMetric]:
    """Yield the numbers: trainers also log texts, switches and tables."""
    values, step = logged or ({}, None)
    for name, value in values.items():
        is_scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
        if is_scalar or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield LoggedMetric(None, str(name), value, step)


SIGNALS = signals(
    SignalType(
        "val_loss",
        "validation loss logged last by the script or its trainer; in the record alone",
        exported="llm_validation_loss",
    ),
    SignalType("val_loss_step", "step that the script gave with it", unit="{step}"),
    topic="loss_statistics",
    interval="every step",
)

MOST_WAITING = 10_000
MOST_REMEMBERED = 1_000  # values for which it is known whether the trainer, MLflow or both gave them
MOST_NAMES = 2_000  # a script that makes up a new name at every step has no further meanings looked up
_VALIDATION = "val_loss"
_THEIR_STEP = "val_loss_step"


@dataclass(frozen=True, slots=True)
class ScriptMetric:
    """A validation loss that the script has logged, and its own step."""

    signals: tuple[Signal, ...]
    values: tuple[float, ...]
    time: float
    name: str = ""
    """The name asked for by `best_by`; other metrics than validation losses have no signals, and are not judged."""


class ScriptMetrics:
    """Validation losses of the run that is being recorded."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[LoggedMetric, float, float]] = deque(maxlen=MOST_WAITING)  # metrics to be taken
        self.is_on = False
        self.wanted = ""  # the metric of `best_by`; ``val_loss`` is the validation loss too
        self._client = UserMetrics(self._heard)
        self.trainers = TrainerMetrics(self._heard)
        self._run_id = ""
        self._difference: dict[tuple[str, str], int] = {}
        """By name and value, how often more the trainer gave it than MLflow's client."""
        self._layouts: dict[str, tuple[Signal, ...] | None] = {}
        """Signals of each name of this run; None where it is no validation loss."""

    def install(self) -> None:
        """Observe MLflow's client, once the script has imported MLflow."""
        self._client.install()
        self.is_on = self._client.is_on

    def remove(self) -> None:
        self._client.remove()
        self.trainers.remove()
        self.is_on = False

    def take(self, run_id: str | None) -> list[ScriptMetric]:
        """Return the metrics of this run since the last call; those of other runs are dropped.

        Raises an error of the observers here, and not in the script's call.
        """
        failure = self._client.failure or self.trainers.failure
        if failure is not None:
            raise failure
        metrics = [self.waiting.popleft() for _ in range(len(self.waiting))]
        if run_id is None:  # the run is unknown yet: metrics logged to a run wait
            self.waiting.extendleft(reversed([item for item in metrics if item[0].run_id is not None]))
        of_run = [item for item in metrics if item[0].run_id in (run_id, None)]
        if run_id != self._run_id:
            if self._run_id:  # else it is the same one, whose name was not known
                self._layouts, self._difference = {}, {}
            self._run_id = run_id or ""
        self._learn([metric.key for metric, _, _ in of_run])
        return [
            _reading(layout or (), value, metric.step, when, self._asked(metric.key, layout or ()))
            for metric, value, when in of_run
            if ((layout := self._layouts.get(metric.key)) or metric.key == self.wanted) and self._is_new(metric, value)
        ]

    def _is_new(self, metric: LoggedMetric, value: float) -> bool:
        """Whether the other one of trainer and MLflow has not given it before."""
        told_value, sign = (metric.key, f"{value:.6g}"), 1 if metric.run_id is None else -1
        more = self._difference.pop(told_value, 0)
        self._difference[told_value] = more + sign
        if len(self._difference) > MOST_REMEMBERED:
            del self._difference[next(iter(self._difference))]
        return more * sign >= 0

    def _asked(self, name: str, layout: tuple[Signal, ...]) -> str:
        is_validation = self.wanted == _VALIDATION and layout[:1] == (Signal(_VALIDATION),)
        return self.wanted if is_validation or name == self.wanted else ""

    def _heard(self, metric: LoggedMetric) -> None:
        """Runs in the thread that logs."""
        is_known = metric.run_id in (self._run_id, None) and self._layouts.get(metric.key, ()) is None
        if is_known and metric.key != self.wanted:
            return  # known, and no validation loss: most are
        # Converted as MLflow has done before: a device is not waited for again.
        self.waiting.append(
            (metric, float(metric.value.item() if hasattr(metric.value, "item") else metric.value), time.time())
        )

    def _learn(self, names: list[str]) -> None:
        """Look up the meaning of new names among all known ones: which loss is the total depends on them."""
        new = [name for name in dict.fromkeys(names) if name not in self._layouts]
        if not new or len(self._layouts) + len(new) > MOST_NAMES:
            return
        meanings = metric_meanings([*self._layouts, *new], all_known=False)
        used = {layout[0] for layout in self._layouts.values() if layout}
        for name in new:
            meaning = meanings[name]
            wanted = meaning.is_known and meaning.quantity == _VALIDATION and not meaning.duplicate_of
            if wanted and meaning.signal not in used:
                used.add(meaning.signal)
                self._layouts[name] = (meaning.signal, Signal(_THEIR_STEP, meaning.place))
            else:
                self._layouts[name] = None


def _reading(layout: tuple[Signal, ...], value: float, step: int | None, when: float, name: str) -> ScriptMetric:
    if step is None or not layout:
        return ScriptMetric(layout[:1], (value,), when, name)
    return ScriptMetric(layout, (value, float(step)), when, name)
