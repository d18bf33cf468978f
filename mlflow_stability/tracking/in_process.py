"""MLflow inside the training process: the script's active run, the metrics it logs, and the run recorded last.

Guarantees: MLflow is not imported here, because without it there is no active run and importing it costs seconds. No
server is asked: tags of a run are those that the script's own `start_run` fetched. After `remove`, MLflow's functions
are those that it had before.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias

from mlflow_stability.errors import TrackingError

_logger = logging.getLogger(__name__)
_FLUENT = "mlflow.tracking.fluent"
CLIENT = "mlflow.tracking.client"  # module of `MlflowClient`; not loaded until the script imports MLflow
_LIGHTNING = ("lightning.", "pytorch_lightning.")
_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
WAIT_SECONDS = 60.0  # how long a diagnosis waits for what is still on its way to the run


@dataclass(frozen=True, slots=True)
class RunInProgress:
    run_id: str
    tags: Mapping[str, str] = field(default_factory=dict)  # as they were when the script started or resumed the run
    resumed: bool = False  # only named by the environment: the server does not know yet that it goes on


def fluent_run() -> RunInProgress | None:
    """Return the run of ``mlflow.start_run`` in this thread: of the script, of autologging, of a Trainer."""
    fluent: Any = sys.modules.get(_FLUENT)
    run = fluent.active_run() if hasattr(fluent, "active_run") else None
    return None if run is None else RunInProgress(run.info.run_id, run.data.tags)


def fluent_runs() -> Sequence[object]:
    """Return MLflow's own list of the runs that this thread is in, the innermost last; it stays the same object."""
    stack = getattr(sys.modules.get(_FLUENT), "_active_run_stack", ())
    runs: Sequence[object] = stack.get() if hasattr(stack, "get") else stack
    return runs


def fluent_run_id() -> str | None:
    run = fluent_run()
    return None if run is None else str(run.run_id)


def measures_machine(run_id: str) -> bool:
    """Return whether MLflow logs system metrics for this run because the script asked for them."""
    return run_id in getattr(sys.modules.get(_FLUENT), "run_id_to_system_metrics_monitor", {})


def end_fluent_run(status: str) -> None:
    """End the run in progress with this status; MLflow's own exit would call it finished."""
    fluent: Any = sys.modules.get(_FLUENT)
    if hasattr(fluent, "active_run") and fluent.active_run() is not None:
        fluent.end_run(status)


def lightning_run() -> RunInProgress | None:
    """Return the run of the MLFlowLogger of the Lightning trainer that is fitting; no thread has it as its active run.

    A trainer calls the steps of its optimizers, so it is the `self` of a method on the stack. Only its own methods are
    searched: until Python 3.13 reading a frame's variables keeps them alive until the frame ends.
    """
    if not any(name in sys.modules for name in ("lightning.pytorch", "pytorch_lightning")):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _TRAINERS:
            caller = frame.f_locals.get("self")
            bases = type(caller).__mro__
            if any(base.__name__ == "Trainer" and base.__module__.startswith(_LIGHTNING) for base in bases):
                run_id = _logger_run_id(caller)
                if run_id:
                    return RunInProgress(run_id)
        frame = frame.f_back
    return None


def _logger_run_id(trainer: Any) -> str | None:
    if not getattr(trainer, "training", False):
        return None
    for logger in trainer.loggers:
        if any(base.__name__ == "MLFlowLogger" for base in type(logger).__mro__):
            return str(logger.run_id)  # creates the run if the logger has not yet, as its first metric would
    return None


def announced_run() -> RunInProgress | None:
    """Return the run that ``MLFLOW_RUN_ID`` names and that the script's first call to MLflow would resume."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    return RunInProgress(run_id, resumed=True) if run_id else None


def tracking_uri() -> str | None:
    """Return where the script's runs are; None for MLflow's default."""
    utils = sys.modules.get("mlflow.tracking._tracking_service.utils")
    if utils is not None:
        return str(utils.get_tracking_uri())
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def experiment_id() -> str | None:
    """Return the experiment that the script has set; ``mlflow.set_experiment`` puts it into the environment."""
    return os.environ.get("MLFLOW_EXPERIMENT_ID") or None


class _Patches:
    """Functions of MLflow that are replaced from `install`, if the script has imported MLflow, until `remove`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, patch: Any) -> None:
        original = getattr(owner, name)

        def put_back() -> None:
            if getattr(owner, name, None) is patch:  # else another patch wraps this one, which stays as a plain call
                setattr(owner, name, original)

        setattr(owner, name, patch)
        self._undo.append(put_back)


class ImplicitRunJoin(_Patches):
    """Lets ``mlflow.log_metric`` without a run log into the recorded run instead of starting a second one.

    `recorded_run_id` is called then and may wait a moment for the run to exist: the call itself is about to talk to
    the server anyway.
    """

    def __init__(self, recorded_run_id: Callable[[], str | None]) -> None:
        super().__init__()
        self._recorded_run_id = recorded_run_id
        self.joined: str | None = None  # the recorded run, once metrics of the script have gone into it

    def install(self) -> None:
        fluent: Any = sys.modules.get(_FLUENT)
        original = getattr(fluent, "_get_or_start_run", None)
        if self._undo or original is None:
            return

        def get_or_start_run() -> Any:
            if fluent.active_run() is None:
                try:
                    run_id = self._recorded_run_id()
                    if run_id is not None:
                        self.joined = run_id
                        return fluent.start_run(run_id=run_id)
                except Exception as error:  # MLflow then does what it would do without this patch
                    _logger.debug("Metrics logged by the script do not reach the recorded run: %s", error)
            return original()

        self._replace(fluent, "_get_or_start_run", get_or_start_run)


class RunEndWatch(_Patches):
    """Calls `on_end` before MLflow ends the script's run; its errors do not reach the script."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        super().__init__()
        self._on_end = on_end

    def install(self) -> None:
        modules: list[Any] = [sys.modules.get(_FLUENT), sys.modules.get("mlflow")]
        original = getattr(modules[0], "end_run", None)
        if self._undo or original is None:
            return

        @functools.wraps(original)
        def end_run(*args: Any, **kwargs: Any) -> Any:
            if fluent_run_id() is not None:
                try:
                    self._on_end()
                except Exception as error:  # the run ends all the same
                    _logger.debug("Coverage of the run was not recorded: %s", error)
            return original(*args, **kwargs)

        for module in modules:
            if getattr(module, "end_run", None) is original:
                self._replace(module, "end_run", end_run)


@dataclass(frozen=True, slots=True)
class LoggedMetric:
    run_id: str | None  # None if it was logged to no run, but by a trainer of the training that is being recorded
    key: str
    value: Any  # as the script gave it: a number, or a tensor that holds one
    step: int | None  # the script's own step


class UserMetrics(_Patches):
    """Calls `on_metric` for each metric that the script logs, in the thread that logs it.

    `MlflowClient.log_metric` and `log_batch` are patched, through which all other ways go: `mlflow.log_metrics`,
    Lightning's logger, Hugging Face's Trainer, MLflow's own autologging. A call that failed is not reported.
    """

    def __init__(self, on_metric: Callable[[LoggedMetric], None]) -> None:
        super().__init__()
        self.failure: Exception | None = None  # why it no longer reports; the owner reports this where it does no harm
        self._on_metric = on_metric
        self._enabled = [False]

    def install(self) -> None:
        if self._undo:
            return
        client: Any = getattr(sys.modules.get(CLIENT), "MlflowClient", None)
        if client is None:
            return
        self._enabled = [True]
        self._patch(client, "log_metric", _metrics_of_call)
        self._patch(client, "log_batch", _metrics_of_batch)

    @property
    def is_on(self) -> bool:
        return bool(self._undo)

    def remove(self) -> None:
        self._enabled[0] = False
        super().remove()

    def _patch(self, client: Any, name: str, metrics_of: Callable[..., Iterator[LoggedMetric]]) -> None:
        original = getattr(client, name, None)
        if original is None:
            return
        enabled = self._enabled

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if enabled[0]:
                try:
                    for metric in metrics_of(*args[1:], **kwargs):
                        self._on_metric(metric)
                except Exception as error:  # the script's own metric was logged, and that is what it asked for
                    enabled[0] = False
                    self.failure = error
            return result

        self._replace(client, name, patched)


def _metrics_of_call(
    run_id: str, key: str, value: Any, _timestamp: Any = None, step: int | None = None, *_: Any, **__: Any
) -> Iterator[LoggedMetric]:
    yield LoggedMetric(run_id, key, value, step)


def _metrics_of_batch(run_id: str, metrics: Any = (), *_: Any, **__: Any) -> Iterator[LoggedMetric]:
    if isinstance(metrics, list | tuple):  # an iterator is used up by the call
        for metric in metrics:
            yield LoggedMetric(run_id, metric.key, metric.value, metric.step)


@dataclass(frozen=True, slots=True)
class DeliveredState:
    """A run, and whether all that was recorded of it has arrived."""

    run_id: str
    tracking_uri: str
    missing: str = ""  # what has not arrived yet, in words; empty if everything has


Deliver: TypeAlias = Callable[[float], DeliveredState | None]
"""Waits until what was recorded is in the run; returns None if the run is not known by then."""
_latest: Deliver | None = None


def announce(deliver: Deliver | None) -> None:
    """Set what this process records from now on."""
    global _latest
    _latest = deliver


def latest() -> Deliver | None:
    return _latest


def latest_run(seconds: float = WAIT_SECONDS) -> DeliveredState | None:
    """Return the run that was recorded last, once everything is in it; None if this process has recorded none.

    Raises ``TrackingError`` if it is not in MLflow yet.
    """
    if _latest is None:
        return None
    state = _latest(seconds)
    if state is None:
        raise TrackingError(
            f"The run recorded last is not in MLflow yet: the courier process has not made it within {seconds:.0f} s. "
            "Try again later; `mlflow-stability doctor` checks the tracking store."
        )
    return state
