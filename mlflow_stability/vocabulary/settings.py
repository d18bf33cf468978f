"""What a user can ask for, with the numbers that hold when nothing is asked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_stability.errors import SettingsError

JOURNAL_FOLDER = ".mlflow-stability"
CHECKPOINTS_FOLDER = "checkpoints"
"""Within the folder of the journals: one folder for each run."""
BATCHES_FOLDER = "batches"
"""Likewise: one folder for each recording, with the batches of steps that broke."""
ATTENTION_EVERY = 500
"""Every how many steps attention is looked at where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of ``autolog()``, checked."""

    log_every_n_steps: int = 10
    """Every how many steps MLflow's metric tables get a point; the full record keeps every step."""
    layers_every_n_steps: int = 100
    """Every how many steps gradients, weights and updates are measured layer by layer."""
    layer_metrics: bool | str = False
    """Layers as metrics too: False, True (one for each block of the model), ``parameters`` (all of them)."""
    attention_every_n_steps: int | None = None
    """Every how many steps attention is looked at, head by head; 0: never; None: 500, in production never."""
    attention_max_seq_len: int = 64
    """Of how many tokens a map of attention shows the weights."""
    representations: tuple[str, ...] = ()
    """Modules whose output is looked at as a representation, beside those that put out sparse binary codes."""
    sdr_check_interval: int = 100
    """Every how many steps representations and sparse codes are looked at; 0: never."""
    sdr_collapse_threshold: float = 0.3
    """Below this share of unique patterns sparse codes have collapsed."""
    tokens_per_step: int | None = None
    """How many tokens a step takes; None: as many as the model's first input says."""
    memory_budget: int | None = None
    """How many bytes of the device the measurements may take for copies; None: 1 % of it, at most 256 MB."""
    system_metrics: bool = False
    """Switch MLflow's own measurements of the machine on for the run."""
    exit_wait: float = 30.0
    """For how many seconds the end of training waits until everything is delivered."""
    journal_dir: Path | None = None
    """Where the journal is kept; None: ``./.mlflow-stability``."""
    exclusive: bool = False
    """Leave runs alone that the user started; record only into runs of our own."""
    silent: bool = False
    """Say nothing, not even warnings."""
    strict: bool = False
    """Raise our own errors into the training instead of switching the failing part off."""
    extra_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags for the run."""
    detectors: tuple[Any, ...] | None = None
    """Which detectors look: names (``loss_spike``, ``loss_spike:classic``) or detectors; None: all of the catalog."""
    divergence_threshold: float | None = None
    """Also call it divergence when the loss is this many times its mean of 100 steps; None: only the robust rule."""
    consecutive_divergence_steps: int = 3
    """For how many steps in a row, with `divergence_threshold`."""
    rollback: Any = False
    """Go back to a good state when the training diverges: False, True, or a `RollbackPolicy` with knobs of your own."""
    guard: bool | str | None = None
    """Skip steps that are broken: False, True, ``late``; None: where `rollback` is on."""
    stop_on: tuple[str, ...] = ()
    """End the training when one of these is met: ``nonfinite``, ``grad_norm>100``."""
    recovery_patience: int = 10
    """For how many steps after going back a finding waits."""
    rollback_checkpoint_interval: int = 500
    """Every how many steps a state is written to disk."""
    max_checkpoints: int = 10
    """How many of them are kept; the best and the last good one always are."""
    adaptive_clip: bool = False
    """Clip gradients whose norm stands out from the training's own."""
    preset: str | None = None
    """A set of knobs for the autopilot: ``research``, ``production``, ``debugging``."""
    capture_batch: bool | str = True
    """Look at the batch of a step that broke: False, True, ``upload`` to have its tensors in the run as well."""
    snapshot_budget: int | None = None
    """How many bytes of host memory the kept states may take; None: a quarter of what is free."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, with the rule and what came."""
        if self.log_every_n_steps < 1:
            raise SettingsError(f"log_every_n_steps must be at least 1, got {self.log_every_n_steps}.")
        if self.layers_every_n_steps < 1:
            raise SettingsError(f"layers_every_n_steps must be at least 1, got {self.layers_every_n_steps}.")
        for name in ("attention_every_n_steps", "sdr_check_interval"):
            if (getattr(self, name) or 0) < 0:
                raise SettingsError(f"{name} must be 0 (never) or more, got {getattr(self, name)}.")
        if self.attention_max_seq_len < 1:
            raise SettingsError(f"attention_max_seq_len must be at least 1, got {self.attention_max_seq_len}.")
        if not 0 < self.sdr_collapse_threshold < 1:
            raise SettingsError(f"sdr_collapse_threshold must be between 0 and 1, got {self.sdr_collapse_threshold}.")
        if self.layer_metrics not in (True, False, "parameters"):
            raise SettingsError(f"layer_metrics must be True, False or 'parameters', got {self.layer_metrics!r}.")
        if self.tokens_per_step is not None and not self.tokens_per_step > 0:
            raise SettingsError(f"tokens_per_step must be more than 0, got {self.tokens_per_step}.")
        if self.memory_budget is not None and not self.memory_budget >= 0:
            raise SettingsError(f"memory_budget must be 0 or more bytes, got {self.memory_budget}.")
        if not self.exit_wait >= 0:
            raise SettingsError(f"exit_wait must be 0 or more seconds, got {self.exit_wait}.")
        if self.divergence_threshold is not None and not self.divergence_threshold > 1:
            raise SettingsError(f"divergence_threshold must be more than 1, got {self.divergence_threshold}.")
        if self.consecutive_divergence_steps < 1:
            raise SettingsError(
                f"consecutive_divergence_steps must be at least 1, got {self.consecutive_divergence_steps}."
            )

        if self.capture_batch not in (True, False, "upload"):
            raise SettingsError(f"capture_batch must be True, False or 'upload', got {self.capture_batch!r}.")
        if self.snapshot_budget is not None and not self.snapshot_budget >= 0:
            raise SettingsError(f"snapshot_budget must be 0 or more bytes, got {self.snapshot_budget}.")

    @property
    def attention_every(self) -> int:
        """Every how many steps attention is looked at; 0: never."""
        if self.attention_every_n_steps is not None:
            return self.attention_every_n_steps
        return 0 if self.preset == "production" else ATTENTION_EVERY

    @property
    def flies(self) -> bool:
        """Whether anything of the autopilot is asked for, so that its part of the package is needed at all."""
        return self.rollback is not False or bool(self.guard) or bool(self.stop_on) or self.adaptive_clip

    @property
    def autopilot(self) -> tuple[Any, ...]:
        """All that the autopilot is made from: where it differs, another one takes over."""
        return tuple(getattr(self, name) for name in _AUTOPILOT)

    def journal_root(self) -> Path:
        """The absolute folder that holds the journals; never a temporary one, for a reboot empties those."""
        return (self.journal_dir or Path(os.environ.get("MLFLOW_STABILITY_JOURNAL_DIR") or JOURNAL_FOLDER)).absolute()


_AUTOPILOT = (
    "rollback",
    "guard",
    "stop_on",
    "recovery_patience",
    "rollback_checkpoint_interval",
    "max_checkpoints",
    "adaptive_clip",
    "preset",
    "capture_batch",
    "snapshot_budget",
    "divergence_threshold",
    "consecutive_divergence_steps",
    "journal_dir",
)


def settings_from_environment() -> dict[str, float]:
    """The settings that the environment overrides: ``MLFLOW_STABILITY_EXIT_WAIT``."""
    text = os.environ.get("MLFLOW_STABILITY_EXIT_WAIT")
    if not text:
        return {}
    try:
        return {"exit_wait": float(text)}
    except ValueError:
        raise SettingsError(f"MLFLOW_STABILITY_EXIT_WAIT must be a number of seconds, got {text!r}.") from None
