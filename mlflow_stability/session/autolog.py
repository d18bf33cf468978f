"""The public calls that begin and end watching.

Promised: ``autolog()`` itself creates nothing, starts nothing and takes under five milliseconds; calling it again
reconfigures; ``autolog(disable=True)`` leaves torch exactly as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Literal

from torch.nn import Module

from mlflow_stability.errors import SettingsError
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.session.autopilot import autopilot_config_of
from mlflow_stability.session.detector_choice import chosen_detectors
from mlflow_stability.session.process import closing_of
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.argument import check_names, with_known_names
from mlflow_stability.vocabulary.settings import DISABLE, Settings, settings_from_environment

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
    memory_budget: int | None = None,
    system_metrics: bool = False,
    exit_wait: float = 30.0,
    journal_dir: str | os.PathLike[str] | None = None,
    detectors: Iterable[Any] | None = None,
    sensitivity: Literal["low", "normal", "high"] = "normal",
    divergence_threshold: float | None = None,
    consecutive_divergence_steps: int = 3,
    rollback: bool | RollbackPolicy = False,
    guard: bool | Literal["late"] | None = None,
    stop_on: str | Iterable[str] = (),
    recovery_patience: int = 10,
    rollback_checkpoint_interval: int = 500,
    max_checkpoints: int = 10,
    adaptive_clip: bool = False,
    preset: Literal["research", "production", "debugging"] | None = None,
    capture_batch: bool | Literal["upload"] = True,
    snapshot_budget: int | None = None,
    exclusive: bool = False,
    disable: bool = False,
    silent: bool = False,
    strict: bool = False,
    extra_tags: Mapping[str, str] | None = None,
) -> None:
    """Record every step of the PyTorch training that follows into MLflow.

    Args:
        log_every_n_steps: Every how many steps MLflow's metric tables get a point. The full record, which `load_run`
            reads, has every step whatever this says.
        layers_every_n_steps: Every how many steps gradients, weights and updates are measured layer by layer.
        layer_metrics: Have layers among MLflow's metrics, too: `True` for one curve for each block of the model,
            `"parameters"` for every layer. The full record and the pictures have them whatever this says.
        attention_every_n_steps: Every how many steps attention is looked at, head by head: 500, and never under
            `preset="production"`, if not given; 0 for never.
        attention_max_seq_len: Of how many tokens a map of attention shows the weights.
        representations: The module, or modules, whose output is looked at as a representation. Those that put out
            sparse binary codes are found without being named.
        sdr_check_interval: Every how many steps representations and sparse codes are looked at; 0 for never.
        sdr_collapse_threshold: Below this share of unique patterns sparse codes are said to have collapsed.
        tokens_per_step: How many tokens a step takes; counted from the model's input if not given.
        memory_budget: How many bytes of the device the measurements may take for copies of weights; 1 % of it, and at
            most 256 MB, if not given.
        system_metrics: Switch MLflow's own measurements of the machine on for the run.
        exit_wait: For how many seconds the end of the training waits until everything is delivered.
        journal_dir: Where the journal is kept until it is delivered; `./.mlflow-stability` if not given.
        detectors: Which detectors look: names such as "loss_spike" or "loss_spike:classic", or detectors with
            thresholds of your own such as `LossSpike(z=10)`; all of `mlflow-stability explain` if not given.
        sensitivity: How little evidence is enough for a finding: "low" finds less and is wrong less often, "high" finds
            more. Moves the thresholds of all detectors but those with thresholds of your own.
        divergence_threshold: Call it divergence, too, when the loss is above this many times its mean of 100 steps.
        consecutive_divergence_steps: For how many steps in a row, with `divergence_threshold`.
        rollback: Set the training back to a good state when it diverges, inside your loop, and ease it back in; `True`,
            or a `RollbackPolicy` with knobs of your own. Turns the guard on.
        guard: Skip steps whose loss or gradients are not finite, or absurd: nothing of the training changes by them.
            `"late"` never waits for the device, and answers a broken step by going back. On with `rollback`.
        stop_on: End the training with `TrainingDiverged` when one of these is met, once its last good state is on the
            disk: "nonfinite", or conditions such as "grad_norm>100" and "loss>50".
        recovery_patience: For how many steps after going back a finding waits: the state may need them to settle.
        rollback_checkpoint_interval: Every how many steps a state is written to disk, under `checkpoints/` in the
            journal's folder.
        max_checkpoints: How many of them are kept; the best and the last good one always are.
        adaptive_clip: Clip gradients whose norm stands out from the training's own.
        preset: Knobs for the autopilot: "research" acts early, "production" late and seldom, "debugging" keeps states
            often and ends the training where it can do no more. What you give yourself comes first.
        capture_batch: Look at the batch of a step that broke, run it once more, and name the module and the operation
            in which the first bad number was born; without the guard of the first such step, on the CPU alone.
            What is found goes into the run; the tensors stay in the journal's folder, unless it is "upload".
        snapshot_budget: How many bytes of host memory the kept states may take; a quarter of what is free if not given.
        exclusive: Leave runs alone that the script has started; record only into runs of our own.
        disable: Take everything off again.
        silent: Say nothing, not even warnings.
        strict: Raise our own errors instead of switching the failing part off. For tests of this package.
        extra_tags: Tags for the run.
    """
    global _current
    if DISABLE.checked("disable", disable):
        if _current is not None:
            _current.stop()
            _current = None
        return
    if _switched_off():
        return
    settings = _settings(
        "autolog()",
        log_every_n_steps=log_every_n_steps,
        layers_every_n_steps=layers_every_n_steps,
        layer_metrics=layer_metrics,
        attention_every_n_steps=attention_every_n_steps,
        attention_max_seq_len=attention_max_seq_len,
        representations=representations,
        sdr_check_interval=sdr_check_interval,
        sdr_collapse_threshold=sdr_collapse_threshold,
        tokens_per_step=tokens_per_step,
        memory_budget=memory_budget,
        system_metrics=system_metrics,
        exit_wait=exit_wait,
        journal_dir=journal_dir,
        detectors=detectors,
        sensitivity=sensitivity,
        divergence_threshold=divergence_threshold,
        consecutive_divergence_steps=consecutive_divergence_steps,
        rollback=rollback,
        guard=guard,
        stop_on=stop_on,
        recovery_patience=recovery_patience,
        rollback_checkpoint_interval=rollback_checkpoint_interval,
        max_checkpoints=max_checkpoints,
        adaptive_clip=adaptive_clip,
        preset=preset,
        capture_batch=capture_batch,
        snapshot_budget=snapshot_budget,
        exclusive=exclusive,
        silent=silent,
        strict=strict,
        extra_tags=extra_tags,
    )
    if _current is not None and _current.is_inherited:
        _current.pause()  # a fork has inherited the hooks of its parent's session
        _current = None
    if _current is not None:
        _current.reconfigure(settings)
        return
    _current = Session(settings)
    _current.install()


def current_session() -> Session | None:
    """The session that `autolog` began, or None."""
    return _current


class Attachment:
    """A loop that is watched by hand: call `step` once per optimizer step."""

    def __init__(self, session: Session | None, model: Module, optimizer: Any) -> None:
        self.session = session
        """The session that records; None where the environment switched us off."""
        self._model = model
        self._optimizer = optimizer

    def step(self, loss: Any = None) -> None:
        """Record one step; call it after backward, while the gradients are still there."""
        if self.session is not None:
            self.session.record_step(loss, self._model, self._optimizer)


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
    settings = Settings(**(given | settings_from_environment()))
    if settings.uses_autopilot:
        policy = autopilot_config_of(settings).policy
        settings = replace(  # what a policy or a preset calls divergence has a detector too
            settings,
            divergence_threshold=policy.divergence_threshold,
            consecutive_divergence_steps=policy.consecutive_divergence_steps,
        )
    chosen_detectors(settings)  # a name that there is not is told here, not at the first step
    return settings
