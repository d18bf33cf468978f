"""The MLflow run that the script is in, read without talking to a server, and a pause of autologging.

Guarantees: MLflow is not imported here (without it there is no active run, and importing it costs seconds); what is
known of a run is what the script's own `start_run` fetched; inside the pause no fitted model adds a run, parameter or
metric to the user's store.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

_logger = logging.getLogger(__name__)
_LIGHTNING = ("lightning.", "pytorch_lightning.")
_TRAINERS = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


@dataclass(frozen=True, slots=True)
class RunInProgress:
    """A run that the script has started."""

    run_id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    """As they were when the script started or resumed the run."""
    resumed: bool = False
    """Only named by the environment: nobody has told the server yet that it goes on."""


def fluent_run() -> RunInProgress | None:
    """The run of ``mlflow.start_run`` in this thread: of the script, of ``mlflow.pytorch.autolog``, of a Trainer."""
    fluent: Any = sys.modules.get("mlflow.tracking.fluent")
    run = fluent.active_run() if hasattr(fluent, "active_run") else None
    return None if run is None else RunInProgress(run.info.run_id, run.data.tags)


def fluent_runs() -> Sequence[object]:
    """MLflow's own list of the runs that this thread is in, the innermost last; it is the same one for good."""
    fluent: Any = sys.modules.get("mlflow.tracking.fluent")
    stack = getattr(fluent, "_active_run_stack", ())
    runs: Sequence[object] = stack.get() if hasattr(stack, "get") else stack
    return runs


def fluent_run_id() -> str | None:
    """The id alone."""
    fluent: Any = sys.modules.get("mlflow.tracking.fluent")
    run = fluent.active_run() if hasattr(fluent, "active_run") else None
    return None if run is None else str(run.info.run_id)


def measures_machine(run_id: str) -> bool:
    """Whether MLflow measures the machine for this run already, because the script has asked it to."""
    fluent: Any = sys.modules.get("mlflow.tracking.fluent")
    return run_id in getattr(fluent, "run_id_to_system_metrics_monitor", {})


def end_fluent_run(status: str) -> None:
    """End the run in progress with this status, where MLflow's own exit is about to call it finished."""
    fluent: Any = sys.modules.get("mlflow.tracking.fluent")
    if hasattr(fluent, "active_run") and fluent.active_run() is not None:
        fluent.end_run(status)


def lightning_run() -> RunInProgress | None:
    """The run of the MLFlowLogger of the Lightning trainer that is fitting; it is in no thread's stack of runs.

    A trainer calls the steps of its optimizers: it is among those whose methods are running, and is looked for there.
    Only in its own methods: until Python 3.13 reading a frame's variables keeps them alive until it ends.
    """
    if not any(name in sys.modules for name in ("lightning.pytorch", "pytorch_lightning")):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _TRAINERS:
            caller = frame.f_locals.get("self")
            run_id = _logger_run_id(caller) if any(map(_is_trainer, type(caller).__mro__)) else None
            if run_id:
                return RunInProgress(run_id)
        frame = frame.f_back
    return None


def announced_run() -> RunInProgress | None:
    """The run that ``MLFLOW_RUN_ID`` names and that the script's first call to MLflow would resume."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    return RunInProgress(run_id, resumed=True) if run_id else None


def _is_trainer(kind: type) -> bool:
    return kind.__name__ == "Trainer" and kind.__module__.startswith(_LIGHTNING)


def _logger_run_id(trainer: Any) -> str | None:
    if not getattr(trainer, "training", False):
        return None
    for logger in trainer.loggers:
        if any(base.__name__ == "MLFlowLogger" for base in type(logger).__mro__):
            return str(logger.run_id)  # makes the run where the logger had not yet, as its first metric would
    return None


def tracking_uri() -> str | None:
    """Where the script's runs live; None: wherever MLflow's defaults say."""
    utils = sys.modules.get("mlflow.tracking._tracking_service.utils")
    if utils is not None:
        return str(utils.get_tracking_uri())
    return os.environ.get("MLFLOW_TRACKING_URI") or None


def experiment_id() -> str | None:
    """The experiment that the script has set; ``mlflow.set_experiment`` leaves it in the environment."""
    return os.environ.get("MLFLOW_EXPERIMENT_ID") or None


class ImplicitRunJoin:
    """Lets ``mlflow.log_metric`` without a run go into ours, instead of starting a second one.

    `our_run_id` is asked at such a call and may wait a moment for the run to exist: the call itself is about to talk
    to the server anyway.
    """

    def __init__(self, our_run_id: Callable[[], str | None]) -> None:
        self._our_run_id = our_run_id
        self._undo: Callable[[], None] | None = None
        self.joined: str | None = None
        """Our run, since metrics of the script have gone into it."""

    def install(self) -> None:
        """Begin, once the script has imported MLflow."""
        fluent: Any = sys.modules.get("mlflow.tracking.fluent")
        original = getattr(fluent, "_get_or_start_run", None)
        if self._undo is not None or original is None:
            return

        def get_or_start_run() -> Any:
            if fluent.active_run() is None:
                try:
                    run_id = self._our_run_id()
                    if run_id is not None:
                        self.joined = run_id
                        return fluent.start_run(run_id=run_id)
                except Exception as error:  # then let MLflow do what it does without us
                    _logger.debug("Metrics logged by the script do not reach the recorded run: %s", error)
            return original()

        def undo() -> None:
            if fluent._get_or_start_run is get_or_start_run:
                fluent._get_or_start_run = original

        fluent._get_or_start_run = get_or_start_run
        self._undo = undo

    def remove(self) -> None:
        """Leave MLflow as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None


class RunEndWatch:
    """Tells when the script ends its run, before MLflow does so; whatever goes wrong there is not the script's."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin, once the script has imported MLflow."""
        places: list[Any] = [sys.modules.get("mlflow.tracking.fluent"), sys.modules.get("mlflow")]
        original = getattr(places[0], "end_run", None)
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

        for place in places:
            if getattr(place, "end_run", None) is original:
                place.end_run = end_run
                self._undo.append(functools.partial(_put_back, place, "end_run", end_run, original))

    def remove(self) -> None:
        """Leave MLflow as it was."""
        while self._undo:
            self._undo.pop()()


def _put_back(owner: Any, name: str, ours: Any, original: Any) -> None:
    if getattr(owner, name, None) is ours:
        setattr(owner, name, original)


@contextmanager
def without_autologging() -> Iterator[None]:
    """`mlflow.autolog()` logs every model of scikit-learn that is fitted in this process, ours as well."""
    known = sys.modules.get("mlflow.utils.autologging_utils")
    if known is None or getattr(known, "_AUTOLOGGING_GLOBALLY_DISABLED", False):
        yield
        return
    with known.disable_autologging():
        yield
