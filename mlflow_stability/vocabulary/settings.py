"""The settings of a recording: what `autolog()` takes, with the type, range and choices of each.

The arguments of `autolog()` are described in its docstring, those of `Options` and `RollbackPolicy` below each field.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from mlflow_stability.vocabulary.argument import (
    Takes,
    check_fields,
    elsewhere,
    folder,
    instance_of,
    made_with_known_names,
    names,
    number,
    objects,
    one_of,
    texts_by_name,
    whole_number,
    yes_or_no,
)
from mlflow_stability.vocabulary.judging_rule import DETECTORS_TAKEN
from mlflow_stability.vocabulary.loss_level import LOSS_WORDS
from mlflow_stability.vocabulary.presets import PRESET
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.sensitivity import SENSITIVITIES

JOURNAL_FOLDER = ".mlflow-stability"
CHECKPOINTS_FOLDER = "checkpoints"
"""Within the folder of the journals: one folder for each run."""
BATCHES_FOLDER = "batches"
"""Likewise: one folder for each recording, with the batches of steps that broke."""
USUAL = {"attention_every_n_steps": 500, "sdr_check_interval": 100, "capture_batch": True}
"""What None means where a preset may say something else."""


@made_with_known_names
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `autolog()` and `attach()` that few trainings need.

    Raises `SettingsError` for a value that does not fit.

    Example:

        >>> Options(exit_wait=60, total_steps=10_000).total_steps
        10000
        >>> Options(exit_wait=-1)
        Traceback (most recent call last):
        mlflow_stability.errors.SettingsError: exit_wait must be a number of seconds, 0 or more; got -1.
    """

    journal_dir: Path | str | None = field(default=None, metadata=folder("'./journal'"))
    """Folder of the journal until it is delivered. None: that of `MLFLOW_STABILITY_JOURNAL_DIR`, else
    `./.mlflow-stability`."""
    exit_wait: float = field(
        default=30.0, metadata={**number(least=0, what="of seconds"), "environment": "MLFLOW_STABILITY_EXIT_WAIT"}
    )
    """Seconds without progress after which the end of the training stops waiting for delivery; it waits at most four
    times as long in all."""
    system_metrics: bool = field(default=False, metadata=yes_or_no())
    """Log MLflow's system metrics in the run."""
    tokens_per_step: int | None = field(default=None, metadata=whole_number(1, "of tokens", optional=True))
    """Number of tokens in a step. None: counted from the model's input."""
    total_steps: int | None = field(default=None, metadata=whole_number(1, "of steps", optional=True))
    """Number of optimizer steps after which the training ends, for `progress` and `eta_seconds`. None: as a schedule or
    a trainer says."""
    total_tokens: int | None = field(default=None, metadata=whole_number(1, "of tokens", optional=True))
    """Number of tokens after which the training ends, in place of `total_steps`."""
    memory_budget: int | None = field(default=None, metadata=whole_number(0, "of bytes", optional=True))
    """Bytes of device memory for copies of weights, and as many for snapshots on their way to the host. None: 1 % of
    it, at most 256 MB."""
    attention_max_seq_len: int = field(default=64, metadata=whole_number(1, "of tokens"))
    """Number of tokens in an attention map."""
    sdr_check_interval: int | None = field(default=None, metadata=whole_number(0, "of steps", optional=True))
    """Interval in steps of measurements of representations and sparse codes; 0 for never. None: 100."""
    capture_batch: bool | Literal["upload"] | None = field(
        default=None, metadata=one_of(True, False, "upload", optional=True)
    )
    """Keep the batch of a loss spike. Run the batch of a broken step again and report the module and operation of the
    first non-finite value; without the guard, of the first such step, on the CPU only. The tensors stay in the
    journal's folder, except with "upload", which puts them into the run. None: as True."""
    adaptive_clip: bool = field(default=False, metadata=yes_or_no())
    """Clip gradients whose norm is an outlier among the norms of this training (ZClip), with or without rollback."""

    def __post_init__(self) -> None:
        """Refuse what does not fit, with what the field takes."""
        check_fields(self)

    @property
    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Options):
    """The arguments of `autolog()` and the fields of its `Options`, checked: paths are `Path`, one name is a tuple."""

    rollback: bool | RollbackPolicy = field(default=False, metadata=instance_of(RollbackPolicy, True, False))
    guard: bool | Literal["late"] | None = field(default=None, metadata=one_of(True, False, "late", optional=True))
    stop_on: tuple[str, ...] = field(
        default=(), metadata=names("'nonfinite' or a condition such as 'loss>50'", "['nonfinite', 'grad_norm>100']")
    )
    preset: str | None = field(default=None, metadata=PRESET)
    detectors: tuple[Any, ...] | None = field(default=None, metadata=objects(DETECTORS_TAKEN))
    sensitivity: str = field(default="normal", metadata=one_of(*SENSITIVITIES))
    loss: str | None = field(default=None, metadata=one_of(*LOSS_WORDS, optional=True))
    log_every_n_steps: int = field(default=10, metadata=whole_number(1))
    layers_every_n_steps: int = field(default=100, metadata=whole_number(1))
    layer_metrics: bool | str = field(default=False, metadata=one_of(True, False, "parameters"))
    attention_every_n_steps: int | None = field(default=None, metadata=whole_number(0, "of steps", optional=True))
    representations: tuple[str, ...] = field(default=(), metadata=names("the name of a module", "'encoder'"))
    alerts: tuple[Any, ...] = field(default=(), metadata=elsewhere("URLs such as 'slack://...', or 'console'"))
    mirrors: tuple[Any, ...] = field(default=(), metadata=elsewhere("tools such as 'tensorboard:runs/' and 'wandb'"))
    prometheus_port: int | None = field(default=None, metadata=whole_number(1, "of a port", optional=True))
    offline: bool = field(default=False, metadata={**yes_or_no(), "environment": "MLFLOW_STABILITY_OFFLINE"})
    extra_tags: Mapping[str, str] = field(default_factory=dict, metadata=texts_by_name("{'team': 'speech'}"))
    exclusive: bool = field(default=False, metadata=yes_or_no())
    silent: bool = field(default=False, metadata=yes_or_no())
    strict: bool = field(default=False, metadata=yes_or_no())

    AUTOPILOT: ClassVar = ("rollback", "guard", "stop_on", "adaptive_clip", "preset", "capture_batch", "journal_dir")
    """What the autopilot is made from."""

    def __post_init__(self) -> None:
        """Refuse what does not fit; for None, take what is usual."""
        check_fields(self)
        for name, value in USUAL.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def policy(self) -> RollbackPolicy:
        """The policy that was given, else that of the preset, else the default; without `rollback`, it has none."""
        if isinstance(self.rollback, RollbackPolicy):
            return self.rollback
        return _usual_policy(self.preset, bool(self.rollback))

    @property
    def guards(self) -> bool | Literal["late"]:
        """Whether broken steps are skipped, or with "late" answered after they were taken."""
        return self.rollback is not False if self.guard is None else self.guard

    @property
    def uses_autopilot(self) -> bool:
        """Whether anything of the autopilot is asked for, so that its part of the package is needed at all."""
        return self.rollback is not False or bool(self.guard) or bool(self.stop_on) or self.adaptive_clip

    @property
    def autopilot(self) -> tuple[Any, ...]:
        """All that the autopilot is made from: where it differs, another one takes over."""
        return tuple(getattr(self, name) for name in self.AUTOPILOT)

    def journal_root(self) -> Path:
        """The absolute folder that holds the journals; never a temporary one, for a reboot empties those."""
        folder = self.journal_dir or os.environ.get("MLFLOW_STABILITY_JOURNAL_DIR") or JOURNAL_FOLDER
        return Path(folder).absolute()


@cache
def _usual_policy(preset: str | None, rolls_back: bool) -> RollbackPolicy:
    policy = RollbackPolicy() if preset is None else RollbackPolicy.preset(preset)
    return policy if rolls_back else replace(policy, max_rollbacks_in_all=0)


TAKES: Mapping[str, Takes] = {
    **{each.name: each.metadata["takes"] for each in fields(Settings)},
    "options": instance_of(Options)["takes"],
    "disable": yes_or_no()["takes"],
}
"""What each argument of `autolog()`, and each field of `Options`, takes."""

ARGUMENTS = (*(name for name in TAKES if name not in {each.name for each in fields(Options)} | {"disable"}),)
"""The arguments that `attach()` has, too: those of `autolog()` but `disable`."""


def settings_from_environment() -> dict[str, Any]:
    """The settings that the environment overrides, each by the variable that its field names."""
    overrides: dict[str, Any] = {}
    for each in fields(Settings):
        variable = each.metadata.get("environment", "")
        if text := os.environ.get(variable):
            given = text != "0" if each.default is False else value_of_text(text)
            overrides[each.name] = TAKES[each.name].checked(variable, given)
    return overrides


def value_of_text(text: str) -> object:
    """A value as a command or a variable of the environment has it: ``true``, ``none``, a number, or a text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text
