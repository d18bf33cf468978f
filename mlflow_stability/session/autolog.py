"""The public calls that begin and end watching.

Guarantees: ``autolog()`` itself creates nothing, starts nothing and takes under five milliseconds; calling it again
reconfigures; ``autolog(disable=True)`` leaves torch exactly as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

from torch import Tensor
from torch.nn import Module

from mlflow_stability.alerts.alert import Alert, read_alerts
from mlflow_stability.alerts.exporters import INSTALL
from mlflow_stability.alerts.message import AlertMessage
from mlflow_stability.alerts.mirrors import read_mirrors
from mlflow_stability.errors import SettingsError
from mlflow_stability.recovery.stop_conditions import stop_conditions
from mlflow_stability.session.probe_plan import chosen_detectors
from mlflow_stability.session.process_end import closing_of
from mlflow_stability.session.session import Session
from mlflow_stability.tracking.in_process import latest
from mlflow_stability.vocabulary.argument import check_arguments, check_names, given_arguments
from mlflow_stability.vocabulary.presets import with_preset
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import ACCEPTS, ARGUMENTS, Options, Settings, settings_from_environment

AlertTarget = str | Alert | Callable[[AlertMessage], object]
_current: Session | None = None


@check_arguments
def autolog(
    *,
    rollback: bool | RollbackPolicy = False,
    guard: bool | Literal["late"] | None = None,
    stop_on: str | Iterable[str] = (),
    preset: Literal["research", "production", "debugging"] | None = None,
    detectors: Iterable[Any] | None = None,
    sensitivity: Literal["low", "normal", "high"] = "normal",
    loss: Literal["supervised", "adversarial", "bootstrapped", "self_distillation", "policy", "preference", "signed"]
    | None = None,
    log_every_n_steps: int = 10,
    layers_every_n_steps: int = 100,
    layer_metrics: bool | Literal["parameters"] = False,
    attention_every_n_steps: int | None = None,
    representations: str | Iterable[str] = (),
    alerts: AlertTarget | Iterable[AlertTarget] = (),
    mirrors: str | Iterable[str] = (),
    prometheus_port: int | str | None = None,
    offline: bool = False,
    extra_tags: Mapping[str, str] | None = None,
    exclusive: bool = False,
    disable: bool = False,
    silent: bool = False,
    strict: bool = False,
    options: Options | None = None,
) -> None:
    """Record every step of the PyTorch training that follows into MLflow.

    Nothing starts before the first optimizer step. Called again, it changes the settings.

    Args:
        rollback: Restore a good state inside your loop when the training diverges, and continue with smaller steps:
            `True`, or a `RollbackPolicy`. Turns the guard on.
        guard: Skip steps with non-finite or extremely large loss or gradients, which then change no weights and no
            optimizer state. `"late"` never waits for the device, and rolls back after a broken step. Default: on with
            `rollback`.
        stop_on: Raise `TrainingDiverged` when a condition is met, after saving the last good state: "nonfinite", or
            conditions such as "grad_norm>100", "loss>50", "val_loss plateau 5", "val_loss+10%", "throughput-80%",
            "memory>90%". Loss and gradient norm are judged before the step is taken.
        preset: Other defaults for intervals, thresholds, checkpoints and rollbacks, which `mlflow-stability presets`
            lists: "research" measures more and acts early, "production" measures less and acts late, "debugging"
            measures everything often and raises when rollbacks do not help. Your own arguments take precedence.
        detectors: Detectors to run: names such as "loss_spike" or "loss_spike:classic", or detectors with your own
            thresholds such as `LossSpike(threshold=10)`, imported from `mlflow_stability.kinds`. "default" adds all
            default detectors, which `mlflow-stability explain` lists; without it, only those in the list run.
        sensitivity: "low" finds less with fewer false alarms, "high" finds more. Moves the thresholds of all
            detectors except those with your own thresholds.
        loss: What the level of your loss means. "supervised": a lower loss is progress, and its level is judged.
            "bootstrapped" (DQN, SAC, TD3), "policy" (PPO, actor-critic), "self_distillation" (BYOL, DINO, MoCo),
            "adversarial" (GANs), "preference" (DPO) and "signed": it is not, and only non-finite values, a growth by a
            factor of 1,000, gradients, weights and layers are judged. Default: as observed in the training.
        log_every_n_steps: Interval in steps of points in MLflow's metric tables. The full record, which `load_run`
            reads, always has every step.
        layers_every_n_steps: Interval in steps of measurements of gradients, weights and updates by layer.
        layer_metrics: Log layers as MLflow metrics too: `True` for one curve for each block of the model,
            `"parameters"` for every layer. The full record and the pictures always have them.
        attention_every_n_steps: Interval in steps of attention measurements, by head; 0 for never. Default: 500.
        representations: Names of modules whose outputs are measured as representations. Modules that return sparse
            binary codes through which a gradient flows, or booleans, are found automatically.
        alerts: Where alerts go: URLs of apprise such as "slack://..." and "mailto://...", "env:NAME" for a URL in an
            environment variable, "console", functions that are called with an `AlertMessage`, or `Alert` objects with
            rules of their own. Default: the URLs in MLFLOW_STABILITY_ALERTS, if there are any.
        mirrors: Other tools that get the same numbers: "tensorboard:FOLDER", "wandb:PROJECT" (offline unless WANDB_MODE
            is set), "otel:http://localhost:4318" for OpenTelemetry.
        prometheus_port: Port at which metrics are served for Prometheus, while the training is recorded. Only this
            machine can read them; for others give an address: `"0.0.0.0:9464"` for all of this machine.
        offline: Write the journal and send nothing, as on a machine without a network. `mlflow-stability sync` delivers
            it later.
        extra_tags: Tags for the run.
        exclusive: Ignore runs started by the script; record only into runs of this package.
        disable: Stop recording and remove all hooks.
        silent: Suppress all output, except warnings that recorded data was lost or not delivered.
        strict: Raise internal errors instead of switching the failing part off. For tests of this package.
        options: Less common options, as an `Options` object: the journal's folder, memory, the end of the process and
            others.

    Raises:
        SettingsError: An unknown argument, or a value that does not fit, with what to write instead.

    Example:

        >>> from mlflow_stability import Options, RollbackPolicy
        >>> autolog(rollback=RollbackPolicy(max_checkpoints=5), options=Options(total_steps=10_000))
        >>> current_session()
        <Session: not recording; no run is known yet>
        >>> autolog(disable=True)
    """
    global _current
    arguments = dict(locals())
    if ACCEPTS["disable"].check("disable", disable):
        if _current is not None:
            _current.stop()
            _current = None
        return
    if _switched_off():
        return
    settings = _settings("autolog()", **{name: arguments[name] for name in given_arguments() if name != "disable"})
    if _current is not None and _current.is_inherited:
        _current.pause()  # a fork has inherited the hooks of its parent's session
        _current = None
    if _current is not None:
        _current.reconfigure(settings)
        return
    _current = Session(settings)
    _current.install()


def current_session() -> Session | None:
    """The current session of `autolog` or `attach`.

    Returns:
        The session, with the `step`, the `run_id`, `checkpoint_now()`, `rollback()` and `skip_next()`; or None.

    Example:

        >>> autolog(disable=True)
        >>> current_session() is None
        True
    """
    return _current


@check_arguments
def flush(seconds: float = 60.0) -> bool:
    """Wait until everything recorded so far is in MLflow.

    The training may go on afterwards.

    Args:
        seconds: For how long to wait.

    Returns:
        False if it takes longer; what is left arrives later.

    Raises:
        SettingsError: `seconds` is not a number of seconds.

    Example:

        >>> flush("soon")
        Traceback (most recent call last):
        mlflow_stability.errors.SettingsError: seconds must be a number of seconds, 0 or more; got 'soon' (str).
    """
    wait = ACCEPTS["exit_wait"].check("seconds", seconds)
    if _current is not None and not _current.is_inherited:
        return _current.wait(wait)
    deliver = latest()
    state = None if deliver is None else deliver(wait)
    return deliver is None or (state is not None and not state.missing)


class Attachment:
    """A training loop recorded by explicit calls: call `step` once per optimizer step."""

    def __init__(self, session: Session | None, model: Module, optimizer: Any) -> None:
        self.session = session  # the recording session; None where the environment switched it off
        self._model = model
        self._optimizer = optimizer

    def step(
        self,
        loss: Any = None,
        gradients: Mapping[str, Tensor] | Iterable[Tensor] | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Record one step; call it after backward, before the gradients are cleared.

        `gradients` are those of `torch.func.grad`; by default those that the model's parameters hold.
        """
        if self.session is not None:
            self.session.record_step(loss, self._model, self._optimizer, gradients, learning_rate)


@contextmanager
def attach(model: Module, optimizer: Any = None, **settings: Any) -> Iterator[Attachment]:
    """Record a loop that no hook can see, such as one with an optimizer of its own making.

    Where the hooks of `autolog` are on, they rest inside.

    Args:
        model: The model whose gradients and weights are measured.
        optimizer: Its optimizer, for the learning rate, where there is one of torch.
        settings: Arguments of `autolog`. Steps are seen after they were taken, so there is no guard and no rollback.

    Returns:
        A context manager that gives an `Attachment`; call its `step` once per optimizer step.

    Raises:
        SettingsError: An unknown argument, or a value that does not fit.

    Example:

        >>> with attach(Module(), offline=True, silent=True) as attached:
        ...     for loss in (3.0, 2.0):
        ...         attached.step(loss, gradients=[Tensor([0.1])], learning_rate=0.1)
        ...     attached.session.step
        2
    """
    global _current
    checked = _settings("attach()", **settings)
    if checked.uses_autopilot:
        raise SettingsError(
            "attach() sees a step only after it was taken, so it cannot skip or roll back. Use "
            "autolog(rollback=True) with an optimizer of torch.optim."
        )
    if _switched_off():
        yield Attachment(None, model, optimizer)
        return
    outer, _current = _current, Session(checked)
    session = _current
    if outer is not None:
        outer.pause()
    try:
        yield Attachment(session, model, optimizer)
    except BaseException as error:
        session.stop(closing_of(error))
        raise
    else:
        session.stop()
    finally:
        _current = outer
        if outer is not None:
            outer.resume()


def _switched_off() -> bool:
    return os.environ.get("MLFLOW_STABILITY_DISABLE", "") not in ("", "0")


def _settings(call: str, /, **given: Any) -> Settings:
    """The settings that a call was given, with what the environment overrides."""
    check_names(call, given, ARGUMENTS)
    options = given.pop("options", None)
    if options is not None:
        given |= ACCEPTS["options"].check("options", options).given
    given["alerts"] = read_alerts(given.get("alerts", ()))  # before anything could show an address
    given["mirrors"] = read_mirrors(given.get("mirrors", ()))
    settings = Settings(**(with_preset(given) | settings_from_environment()))
    if settings.prometheus_port is not None and find_spec("prometheus_client") is None:
        raise SettingsError(f"prometheus_port needs prometheus_client, which is not installed here: {INSTALL}.")
    if settings.uses_autopilot:
        stop_conditions(settings.stop_on)
    chosen_detectors(settings)  # contradictions and unknown names are refused here, not at the first step
    return settings
