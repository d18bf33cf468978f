"""What a user can ask for: each setting with its default, and with the type, range and choices that it takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mlflow_stability.vocabulary.argument import (
    Takes,
    check_fields,
    elsewhere,
    folder,
    names,
    number,
    objects,
    one_of,
    stateful,
    text,
    texts_by_name,
    whole_number,
    yes_or_no,
)
from mlflow_stability.vocabulary.judging_rule import DETECTORS_TAKEN, JUDGING_RULES, ROBUST
from mlflow_stability.vocabulary.loss_level import LOSS_WORDS
from mlflow_stability.vocabulary.presets import PRESET
from mlflow_stability.vocabulary.sensitivity import SENSITIVITIES

JOURNAL_FOLDER = ".mlflow-stability"
CHECKPOINTS_FOLDER = "checkpoints"
"""Within the folder of the journals: one folder for each run."""
BATCHES_FOLDER = "batches"
"""Likewise: one folder for each recording, with the batches of steps that broke."""
ATTENTION_EVERY = 500
"""Every how many steps attention is looked at where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of ``autolog()``, checked and in their one form: paths are `Path`, one name is a tuple of one."""

    log_every_n_steps: int = field(default=10, metadata=whole_number(1))
    """Every how many steps MLflow's metric tables get a point; the full record keeps every step."""
    layers_every_n_steps: int = field(default=100, metadata=whole_number(1))
    """Every how many steps gradients, weights and updates are measured layer by layer."""
    layer_metrics: bool | str = field(default=False, metadata=one_of(True, False, "parameters"))
    """Layers as metrics too: False, True (one for each block of the model), ``parameters`` (all of them)."""
    attention_every_n_steps: int | None = field(default=None, metadata=whole_number(0, "of steps", optional=True))
    """Every how many steps attention is looked at, head by head; 0: never; None: 500."""
    attention_max_seq_len: int = field(default=64, metadata=whole_number(1, "of tokens"))
    """Of how many tokens a map of attention shows the weights."""
    representations: tuple[str, ...] = field(default=(), metadata=names("the name of a module", "'encoder'"))
    """Modules whose output is looked at as a representation, beside those that put out sparse binary codes."""
    sdr_check_interval: int = field(default=100, metadata=whole_number(0, "of steps"))
    """Every how many steps representations and sparse codes are looked at; 0: never."""
    sdr_collapse_threshold: float = field(default=0.3, metadata=number(above=0, below=1))
    """Below this share of unique patterns sparse codes have collapsed."""
    tokens_per_step: int | None = field(default=None, metadata=whole_number(1, "of tokens", optional=True))
    """How many tokens a step takes; None: as many as the model's first input says."""
    total_steps: int | None = field(default=None, metadata=whole_number(1, "of steps", optional=True))
    """After how many optimizer steps the training ends; None: as a schedule or a trainer says."""
    total_tokens: int | None = field(default=None, metadata=whole_number(1, "of tokens", optional=True))
    """After how many tokens the training ends, where `total_steps` is not given."""
    memory_budget: int | None = field(default=None, metadata=whole_number(0, "of bytes", optional=True))
    """How many bytes of the device measurements may take for copies, and snapshots again; None: 1 %, at most 256 MB."""
    system_metrics: bool = field(default=False, metadata=yes_or_no())
    """Switch MLflow's own measurements of the machine on for the run."""
    exit_wait: float = field(default=30.0, metadata=number(least=0, what="of seconds"))
    """For how many seconds without progress the end of training waits until everything is delivered."""
    journal_dir: Path | None = field(default=None, metadata=folder("'./journal'"))
    """Where the journal is kept; None: ``./.mlflow-stability``."""
    offline: bool = field(default=False, metadata=yes_or_no())
    """Write the journal and deliver nothing: ``mlflow-stability sync`` does so later, from a machine with a network."""
    exclusive: bool = field(default=False, metadata=yes_or_no())
    """Leave runs alone that the user started; record only into runs of our own."""
    silent: bool = field(default=False, metadata=yes_or_no())
    """Say nothing, not even warnings, except that recorded data is lost or not delivered."""
    strict: bool = field(default=False, metadata=yes_or_no())
    """Raise our own errors into the training instead of switching the failing part off."""
    extra_tags: Mapping[str, str] = field(default_factory=dict, metadata=texts_by_name("{'team': 'speech'}"))
    """Tags for the run."""
    detectors: tuple[Any, ...] | None = field(default=None, metadata=objects(DETECTORS_TAKEN))
    """Which detectors look: names (``loss_spike``, ``loss_spike:classic``) or detectors; None: all of the catalog."""
    sensitivity: str = field(default="normal", metadata=one_of(*SENSITIVITIES))
    """How little evidence is enough for a finding of the detectors that are named or usual: low, normal, high."""
    loss: str | None = field(default=None, metadata=one_of(*LOSS_WORDS, optional=True))
    """What the level of the loss means: ``supervised``, ``bootstrapped``, …; None: what is observed."""
    rule: str = field(default=ROBUST, metadata=one_of(*JUDGING_RULES))
    """By which rule spikes, explosions and divergences are judged: robust, classic."""
    loss_spike_threshold: float | None = field(default=None, metadata=number(above=0, what="of σ", optional=True))
    """From how many σ above its level on a loss is a spike; None: the usual rule."""
    gradient_explosion_threshold: float | None = field(
        default=None, metadata=number(above=0, what="of σ", optional=True)
    )
    """From how many σ above its level on a gradient norm has exploded; None: the usual rule."""
    divergence_threshold: float | None = field(default=None, metadata=number(above=1, optional=True))
    """Also call it divergence when the loss is this many times its mean of 100 steps; None: only the robust rule."""
    consecutive_divergence_steps: int = field(default=3, metadata=whole_number(1))
    """For how many steps in a row, with `divergence_threshold`."""
    rollback: Any = field(default=False, metadata=elsewhere())
    """Go back to a good state when the training diverges: False, True, or a `RollbackPolicy` with knobs of your own."""
    guard: bool | str | None = field(default=None, metadata=one_of(True, False, "late", optional=True))
    """Skip steps that are broken: False, True, ``late``; None: where `rollback` is on."""
    stop_on: tuple[str, ...] = field(
        default=(), metadata=names("'nonfinite' or a condition such as 'loss>50'", "['nonfinite', 'grad_norm>100']")
    )
    """End the training when one of these is met: ``nonfinite``, ``grad_norm>100``."""
    recovery_patience: int = field(default=10, metadata=whole_number(0, "of steps"))
    """For how many steps after going back a finding waits."""
    rollback_checkpoint_interval: int = field(default=500, metadata=whole_number(1, "of steps"))
    """Every how many steps a state is written to disk."""
    max_checkpoints: int = field(default=10, metadata=whole_number(2))
    """How many of them are kept; the best and the last good one always are."""
    best_by: str | None = field(default=None, metadata=text("the name of a metric", "'val_loss'", optional=True))
    """The metric that says which checkpoint is the best; None: the training loss."""
    best_mode: str = field(default="min", metadata=one_of("min", "max"))
    """Whether its lowest or its highest value is the best."""
    rollback_target: str = field(default="newest", metadata=one_of("newest", "best"))
    """Which good state is gone back to: the newest, or the best."""
    extra_state: Mapping[str, Any] = field(default_factory=dict, metadata=stateful("{'sampler': sampler}"))
    """Objects of the script whose ``state_dict()`` goes into each checkpoint."""
    adaptive_clip: bool = field(default=False, metadata=yes_or_no())
    """Clip gradients whose norm stands out from the training's own."""
    alerts: tuple[Any, ...] = field(default=(), metadata=elsewhere("URLs such as 'slack://...', or 'console'"))
    """Where alerts go: `Alert` objects, which have been checked."""
    prometheus_port: int | None = field(default=None, metadata=whole_number(1, "of a port", optional=True))
    """The port at which the courier serves metrics for Prometheus; None: none."""
    mirrors: tuple[Any, ...] = field(default=(), metadata=elsewhere("tools such as 'tensorboard:runs/' and 'wandb'"))
    """Which other tools get the same numbers: `Mirror` objects, which have been checked."""
    preset: str | None = field(default=None, metadata=PRESET)
    """Whose settings hold where nothing else was given: ``research``, ``production``, ``debugging``."""
    capture_batch: bool | str = field(default=True, metadata=one_of(True, False, "upload"))
    """Look at the batch of a step that broke: False, True, ``upload`` to have its tensors in the run as well."""
    snapshot_budget: int | None = field(default=None, metadata=whole_number(0, "of bytes", optional=True))
    """How many bytes of host memory the kept states may take; None: a quarter of what is free."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, with what the setting takes and what it got."""
        check_fields(self)

    @property
    def attention_every(self) -> int:
        """Every how many steps attention is looked at; 0: never."""
        if self.attention_every_n_steps is not None:
            return self.attention_every_n_steps
        return ATTENTION_EVERY

    @property
    def uses_autopilot(self) -> bool:
        """Whether anything of the autopilot is asked for, so that its part of the package is needed at all."""
        return (
            self.rollback is not False
            or bool(self.guard)
            or bool(self.stop_on)
            or self.adaptive_clip
            or self.best_by is not None
        )

    @property
    def autopilot(self) -> tuple[Any, ...]:
        """All that the autopilot is made from: where it differs, another one takes over."""
        return tuple(getattr(self, name) for name in _AUTOPILOT)

    def journal_root(self) -> Path:
        """The absolute folder that holds the journals; never a temporary one, for a reboot empties those."""
        return (self.journal_dir or Path(os.environ.get("MLFLOW_STABILITY_JOURNAL_DIR") or JOURNAL_FOLDER)).absolute()


EXIT_WAIT = number(least=0, what="of seconds")["takes"]
"""What a number of seconds to wait may be."""
DISABLE = yes_or_no()["takes"]
"""What ``disable=`` takes: no setting of a recording, for there is none then."""
_AUTOPILOT = (
    "rollback",
    "guard",
    "stop_on",
    "recovery_patience",
    "rollback_checkpoint_interval",
    "max_checkpoints",
    "adaptive_clip",
    "best_by",
    "best_mode",
    "rollback_target",
    "extra_state",
    "preset",
    "capture_batch",
    "snapshot_budget",
    "divergence_threshold",
    "consecutive_divergence_steps",
    "journal_dir",
)


def settings_from_environment() -> dict[str, float | bool]:
    """The settings that the environment overrides: ``MLFLOW_STABILITY_EXIT_WAIT``, ``MLFLOW_STABILITY_OFFLINE``."""
    overrides: dict[str, float | bool] = {}
    if offline := os.environ.get("MLFLOW_STABILITY_OFFLINE"):
        overrides["offline"] = offline != "0"
    name = "MLFLOW_STABILITY_EXIT_WAIT"
    text = os.environ.get(name)
    if not text:
        return overrides
    takes: Takes = next(each.metadata["takes"] for each in fields(Settings) if each.name == "exit_wait")
    try:
        given: object = float(text)
    except ValueError:
        given = text
    return overrides | {"exit_wait": takes.checked(name, given)}
