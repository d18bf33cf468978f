"""The public calls that begin and end watching.

Guarantees: ``autolog()`` itself creates nothing, starts nothing and takes under five milliseconds; calling it again
reconfigures; ``autolog(disable=True)`` leaves torch exactly as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any, Literal

from torch import Tensor
from torch.nn import Module

from mlflow_stability.alerts import Alert, AlertMessage, alerts_of
from mlflow_stability.alerts.metrics import INSTALL, mirrors_of
from mlflow_stability.errors import SettingsError
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.session.autopilot import autopilot_config_of
from mlflow_stability.session.detector_choice import chosen_detectors
from mlflow_stability.session.process import closing_of
from mlflow_stability.session.session import Session
from mlflow_stability.tracking.in_process import latest
from mlflow_stability.vocabulary.argument import check_names, given_names, with_known_names
from mlflow_stability.vocabulary.presets import with_preset
from mlflow_stability.vocabulary.settings import DISABLE, EXIT_WAIT, Settings, settings_from_environment

AlertTarget = str | Alert | Callable[[AlertMessage], object]
_current: Session | None = None


@with_known_names
def autolog(
    *,
    log_every_n_steps: int = 10,
    layers_every_n_steps: int = 100,
    layer_metrics: bool | Literal["parameters"] = False,
    attention_every_n_steps: int | None = None,
    attention_max_seq_len: int = 64,
    representations: str | Iterable[str] = (),
    sdr_check_interval: int = 100,
    sdr_collapse_threshold: float = 0.3,
    tokens_per_step: int | None = None,
    total_steps: int | None = None,
    total_tokens: int | None = None,
    memory_budget: int | None = None,
    system_metrics: bool = False,
    exit_wait: float = 30.0,
    journal_dir: str | os.PathLike[str] | None = None,
    detectors: Iterable[Any] | None = None,
    sensitivity: Literal["low", "normal", "high"] = "normal",
    loss: Literal["supervised", "adversarial", "bootstrapped", "self_distillation", "policy", "preference", "signed"]
    | None = None,
    rule: Literal["robust", "classic"] = "robust",
    loss_spike_threshold: float | None = None,
    gradient_explosion_threshold: float | None = None,
    divergence_threshold: float | None = None,
    consecutive_divergence_steps: int = 3,
    rollback: bool | RollbackPolicy = False,
    guard: bool | Literal["late"] | None = None,
    stop_on: str | Iterable[str] = (),
    recovery_patience: int = 10,
    rollback_checkpoint_interval: int = 500,
    max_checkpoints: int = 10,
    best_by: str | None = None,
    best_mode: Literal["min", "max"] = "min",
    rollback_target: Literal["newest", "best"] = "newest",
    extra_state: Mapping[str, Any] | None = None,
    adaptive_clip: bool = False,
    preset: Literal["research", "production", "debugging"] | None = None,
    capture_batch: bool | Literal["upload"] = True,
    snapshot_budget: int | None = None,
    offline: bool = False,
    alerts: AlertTarget | Iterable[AlertTarget] = (),
    prometheus_port: int | None = None,
    mirrors: str | Iterable[str] = (),
    exclusive: bool = False,
    disable: bool = False,
    silent: bool = False,
    strict: bool = False,
    extra_tags: Mapping[str, str] | None = None,
) -> None:
    """Record every step of the PyTorch training that follows into MLflow.

    Args:
        log_every_n_steps: Interval in steps of points in MLflow's metric tables. The full record, which `load_run`
            reads, always has every step.
        layers_every_n_steps: Interval in steps of measurements of gradients, weights and updates by layer.
        layer_metrics: Log layers as MLflow metrics too: `True` for one curve for each block of the model,
            `"parameters"` for every layer. The full record and the pictures always have them.
        attention_every_n_steps: Interval in steps of attention measurements, by head; 0 for never. Default: 500.
        attention_max_seq_len: Number of tokens in an attention map.
        representations: Names of modules whose outputs are measured as representations. Modules that return sparse
            binary codes are found automatically.
        sdr_check_interval: Interval in steps of measurements of representations and sparse codes; 0 for never.
        sdr_collapse_threshold: Share of unique patterns below which sparse codes count as collapsed.
        tokens_per_step: Number of tokens in a step. Default: counted from the model's input.
        total_steps: Number of optimizer steps after which the training ends, for the time left. Default: as a
            schedule or a trainer says.
        total_tokens: Number of tokens after which the training ends, in place of `total_steps`.
        memory_budget: Bytes of device memory for copies of weights, and as many for snapshots on their way to the
            host. Default: 1 % of it, at most 256 MB.
        system_metrics: Log MLflow's system metrics in the run.
        exit_wait: Seconds without progress after which the end of the training stops waiting for delivery; it waits
            at most four times as long in all.
        journal_dir: Folder of the journal until it is delivered. Default: `./.mlflow-stability`.
        detectors: Detectors to run: names such as "loss_spike" or "loss_spike:classic", or detectors with your own
            thresholds such as `LossSpike(threshold=10)`, imported from `mlflow_stability.kinds`. Default: all of
            `mlflow-stability explain`.
        sensitivity: "low" finds less with fewer false alarms, "high" finds more. Moves the thresholds of all
            detectors except those with your own thresholds.
        loss: What the level of your loss means. "supervised": a lower loss is progress, and its level is judged.
            "bootstrapped" (DQN, SAC, TD3), "policy" (PPO, actor-critic), "self_distillation" (BYOL, DINO, MoCo),
            "adversarial" (GANs), "preference" (DPO) and "signed": it is not, and only non-finite values, a growth by a
            factor of 1,000, gradients, weights and layers are judged. Default: as observed in the training.
        rule: "classic" judges spikes, gradient explosions and divergences by the rules in general use:
            standard deviations above the mean of the last steps, as `mlflow-stability explain loss_spike:classic` says.
            Finds more, with more false alarms.
        loss_spike_threshold: Report a loss spike from this many σ above the baseline on, with no other condition.
            Default: the rule of `mlflow-stability explain loss_spike`.
        gradient_explosion_threshold: Report a gradient explosion from this many σ above the baseline on, with no other
            condition. Default: the rule of `mlflow-stability explain gradient_explosion`.
        divergence_threshold: Report divergence too when the loss exceeds this multiple of its mean over 100 steps.
        consecutive_divergence_steps: Number of consecutive steps, with `divergence_threshold`.
        rollback: Restore a good state inside your loop when the training diverges, and continue with smaller steps:
            `True`, or a `RollbackPolicy`. Turns the guard on.
        guard: Skip steps with non-finite or extremely large loss or gradients, leaving the training unchanged.
            `"late"` never waits for the device, and rolls back after a broken step. On with `rollback`.
        stop_on: Raise `TrainingDiverged` when a condition is met, after saving the last good state: "nonfinite", or
            conditions such as "grad_norm>100", "loss>50", "val_loss plateau 5", "val_loss+10%", "throughput-80%",
            "memory>90%". Loss and gradient norm are judged before the step is taken.
        recovery_patience: Number of steps after a rollback in which findings are ignored while the state settles.
        rollback_checkpoint_interval: Interval in steps of states written to disk, in `checkpoints/` of the journal's
            folder.
        max_checkpoints: Number of checkpoints kept; the best and the last good one are always among them.
        best_by: Metric that says which checkpoint is the best, such as "val_loss": one that the script logs to MLflow.
            A checkpoint is written at each new best value. Default: the training loss.
        best_mode: Whether the lowest or the highest value of it is the best.
        rollback_target: Which good state a rollback restores: the newest, or the best.
        extra_state: Objects by name whose `state_dict()` goes into each checkpoint, such as `{"sampler": sampler}`;
            `restore(extra_state=...)` loads it.
        adaptive_clip: Clip gradients whose norm is an outlier among the norms of this training.
        preset: Other defaults for intervals, thresholds, checkpoints and rollbacks, which `mlflow-stability presets`
            lists: "research" measures more and acts early, "production" measures less and acts late, "debugging"
            measures all of it often and raises when rollbacks do not help. Your own arguments take precedence.
        capture_batch: Run the batch of a broken step again and report the module and operation of the first
            non-finite value. Without the guard, the first such step is reported on the CPU only. Results go into the
            run; the tensors stay in the journal's folder, except with "upload".
        snapshot_budget: Bytes of host memory for snapshots. Default: a quarter of the free memory.
        offline: Write the journal and send nothing, as on a machine without a network. `mlflow-stability sync` delivers
            it later.
        alerts: Where alerts go: URLs of apprise such as "slack://..." and "mailto://...", "env:NAME" for a URL in an
            environment variable, "console", functions that are called with an `AlertMessage`, or `Alert` objects with
            rules of their own. Default: the URLs in MLFLOW_STABILITY_ALERTS, if there are any.
        prometheus_port: Port at which metrics are served for Prometheus, while the training is recorded.
        mirrors: Other tools that get the same numbers: "tensorboard:FOLDER", "wandb:PROJECT" (offline unless WANDB_MODE
            is set), "otel:http://localhost:4318" for OpenTelemetry.
        exclusive: Ignore runs started by the script; record only into runs of this package.
        disable: Stop recording and remove all hooks.
        silent: Suppress all output, warnings included, except that recorded data is lost or not delivered.
        strict: Raise internal errors instead of switching the failing part off. For tests of this package.
        extra_tags: Tags for the run.
    """
    global _current
    arguments = dict(locals())
    if DISABLE.checked("disable", disable):
        if _current is not None:
            _current.stop()
            _current = None
        return
    if _switched_off():
        return
    settings = _settings("autolog()", **{name: arguments[name] for name in given_names() if name != "disable"})
    if _current is not None and _current.is_inherited:
        _current.pause()  # a fork has inherited the hooks of its parent's session
        _current = None
    if _current is not None:
        _current.reconfigure(settings)
        return
    _current = Session(settings)
    _current.install()


def current_session() -> Session | None:
    """The current session of `autolog`, or None."""
    return _current


@with_known_names
def flush(seconds: float = 60.0) -> bool:
    """Wait until everything that was recorded so far is in MLflow.

    The training may go on afterwards. Gives False if it takes longer than `seconds`; what is left arrives later.
    """
    wait = EXIT_WAIT.checked("seconds", seconds)
    if _current is not None and not _current.is_inherited:
        return _current.wait(wait)
    recorded = latest()
    state = None if recorded is None else recorded.delivered(wait)
    return recorded is None or (state is not None and not state.missing)


class Attachment:
    """A training loop recorded by explicit calls: call `step` once per optimizer step."""

    def __init__(self, session: Session | None, model: Module, optimizer: Any) -> None:
        self.session = session
        """The recording session; None where the environment switched it off."""
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

    Takes the settings of `autolog`. Where the hooks of `autolog` are on, they rest inside.
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
    check_names(call, given, [each.name for each in fields(Settings)])
    given["alerts"] = alerts_of(given.get("alerts", ()))  # before anything could show an address
    given["mirrors"] = mirrors_of(given.get("mirrors", ()))
    settings = Settings(**(with_preset(given) | settings_from_environment()))
    if settings.prometheus_port is not None and find_spec("prometheus_client") is None:
        raise SettingsError(f"prometheus_port needs prometheus_client, which is not installed here: {INSTALL}.")
    if settings.uses_autopilot:
        policy = autopilot_config_of(settings).policy
        settings = replace(  # what a policy or a preset calls divergence has a detector too
            settings,
            divergence_threshold=policy.divergence_threshold,
            consecutive_divergence_steps=policy.consecutive_divergence_steps,
            best_by=policy.best_by,
        )
    chosen_detectors(settings)  # a name that there is not is told here, not at the first step
    return settings
