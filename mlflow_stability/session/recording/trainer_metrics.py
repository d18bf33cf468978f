"""Hears the validation metrics that trainers of other libraries log or compute, in the training process.

In: the libraries that the script has loaded. Out: names, values and the trainer's own step, call by call. Guarantees:
no library is imported; results and exceptions are the library's own, and a call that failed was not heard; a library
whose method has changed its name is left alone; after `remove`, each class holds what it held before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlflow_stability.probes.hooks import HookHandles
from mlflow_stability.tracking.in_process import LoggedMetric

Told = tuple[Mapping[str, Any], int | None]
"""Metrics by name, and the step or epoch that the trainer gives them."""


@dataclass(frozen=True)
class TrainerMethod:
    """A method of a trainer in whose calls metrics are found."""

    module: str
    """Looked for among the modules that are loaded."""
    owner: str
    name: str
    read: Callable[[Any, Mapping[str, Any], Any], Told | None]
    """From the trainer's object, the arguments by name and the result to what was told."""
    arguments: tuple[str, ...] = ()
    """Names of the positional arguments."""


def _lightning(loop: Any, _given: Mapping[str, Any], result: Any) -> Told | None:
    """One validation within `fit`: a dictionary for each data loader. `validate` may be of any model."""
    trainer = loop.trainer
    if trainer.sanity_checking or trainer.state.fn != "fit":
        return None
    return {name: value for each in result for name, value in each.items()}, trainer.global_step


def _hugging_face(_handler: Any, given: Mapping[str, Any], _result: Any) -> Told:
    return given["logs"], given["state"].global_step


def _given_with_step(metrics: str, _owner: Any, given: Mapping[str, Any], _result: Any) -> Told:
    return given[metrics], given.get("step")


def _keras(_callbacks: Any, given: Mapping[str, Any], _result: Any) -> Told:
    return given.get("logs") or {}, given["epoch"]


def _fastai(recorder: Any, _given: Mapping[str, Any], _result: Any) -> Told:
    return dict(zip(recorder.metric_names, recorder.log, strict=False)), recorder.log[0]


def _skorch(history: Any, given: Mapping[str, Any], _result: Any) -> Told:
    return {given["attr"]: given["value"]}, len(history)


def _ultralytics(trainer: Any, _given: Mapping[str, Any], result: Any) -> Told:
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
    """Listens to trainers; `on_metric` is called in the thread that logs, and must be quick."""

    def __init__(self, on_metric: Callable[[LoggedMetric], None]) -> None:
        self.failure: Exception | None = None
        """Why nothing is heard any more; whoever looks after us tells it where it does no harm."""
        self._on_metric = on_metric
        self._handles = HookHandles()
        self._heard: set[TrainerMethod] = set()

    def install(self) -> None:
        """Listen to what the script has loaded since the last call."""
        for method in LISTENED:
            owner = getattr(sys.modules.get(method.module), method.owner, None)
            if method not in self._heard and hasattr(owner, method.name):
                self._heard.add(method)
                self._handles.patch(owner, method.name, partial(self._around, method))

    def remove(self) -> None:
        """Leave the libraries as they were."""
        self._handles.remove()
        self._heard.clear()

    def _around(self, method: TrainerMethod, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.failure is None:
            try:
                given = dict(zip(method.arguments, args[1:], strict=False)) | kwargs
                for metric in _metrics(method.read(args[0], given, result)):
                    self._on_metric(metric)
            except Exception as error:  # the trainer has done what it was asked for
                self.failure = error
        return result


def _metrics(told: Told | None) -> Iterator[LoggedMetric]:
    """Those that are numbers: trainers log texts, switches and tables, too."""
    values, step = told or ({}, None)
    for name, value in values.items():
        is_scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
        if is_scalar or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield LoggedMetric(None, str(name), value, step)
