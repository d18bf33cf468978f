"""The settings of a recording: arguments of `autolog()` with their types, ranges, choices and defaults.

The arguments of `autolog()` are described in its docstring, those of `Options` and `RollbackPolicy` at each field.
An argument that moved to another object is answered with where it is now.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from mlflow_stability.vocabulary.argument import (
    Accepts,
    boolean,
    check_fields,
    check_init_arguments,
    folder,
    instance_of,
    names,
    number,
    objects,
    one_of,
    port_or_address,
    texts_by_name,
    unchecked,
    whole_number,
)
from mlflow_stability.vocabulary.judging import DETECTORS_TAKEN, SENSITIVITIES
from mlflow_stability.vocabulary.loss_level import LOSS_WORDS
from mlflow_stability.vocabulary.presets import PRESET
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

JOURNAL_FOLDER = ".mlflow-stability"
CHECKPOINTS_FOLDER = "checkpoints"  # in the folder of the journals: one folder for each run
BATCHES_FOLDER = "batches"  # in the folder of the journals: a folder for each recording, with batches of broken steps
VALUES_FOR_NONE = {"attention_every_n_steps": 500, "sdr_check_interval": 100, "capture_batch": True}
"""Values of arguments that are None without a preset."""


@check_init_arguments
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

    journal_dir: Path | str | None = field(
        default=None, metadata={**folder("'./journal'"), "default_from": "MLFLOW_STABILITY_JOURNAL_DIR"}
    )
    """Folder of the journal until it is delivered. None: that of `MLFLOW_STABILITY_JOURNAL_DIR`, else
    `./.mlflow-stability`."""
    exit_wait: float = field(
        default=30.0, metadata={**number(at_least=0, what="of seconds"), "environment": "MLFLOW_STABILITY_EXIT_WAIT"}
    )
    """Seconds without progress after which the end of the training stops waiting for delivery; it waits at most four
    times as long in all."""
    system_metrics: bool = field(default=False, metadata=boolean())  # log MLflow's system metrics in the run
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
    adaptive_clip: bool = field(default=False, metadata=boolean())
    """Clip gradients whose norm is an outlier among the norms of this training (ZClip), with or without rollback."""

    def __post_init__(self) -> None:
        """Refuse what does not fit, with what the field takes."""
        check_fields(self)

    @property
    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {
            option.name: value for option in fields(self) if (value := getattr(self, option.name)) != option.default
        }


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
    alerts: tuple[Any, ...] = field(
        default=(),
        metadata={
            **unchecked("URLs such as 'slack://...', or 'console'"),
            "default_from": "MLFLOW_STABILITY_ALERTS",
        },
    )
    mirrors: tuple[Any, ...] = field(default=(), metadata=unchecked("tools such as 'tensorboard:runs/' and 'wandb'"))
    prometheus_port: int | str | None = field(default=None, metadata=port_or_address("'0.0.0.0:9464'"))
    offline: bool = field(default=False, metadata={**boolean(), "environment": "MLFLOW_STABILITY_OFFLINE"})
    extra_tags: Mapping[str, str] = field(default_factory=dict, metadata=texts_by_name("{'team': 'speech'}"))
    exclusive: bool = field(default=False, metadata=boolean())
    silent: bool = field(default=False, metadata=boolean())
    strict: bool = field(default=False, metadata=boolean())

    AUTOPILOT: ClassVar = ("rollback", "guard", "stop_on", "adaptive_clip", "preset", "capture_batch", "journal_dir")
    """Settings that configure the autopilot."""

    def __post_init__(self) -> None:
        """Check the fields, and replace None by the usual value."""
        check_fields(self)
        for name, value in VALUES_FOR_NONE.items():
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
        """Whether any of its settings asks for the autopilot, so that it has to be loaded."""
        return self.rollback is not False or bool(self.guard) or bool(self.stop_on) or self.adaptive_clip

    @property
    def autopilot(self) -> tuple[Any, ...]:
        """The settings that configure the autopilot: where they change, a new one takes over."""
        return tuple(getattr(self, name) for name in self.AUTOPILOT)

    def journal_root(self) -> Path:
        """Return the absolute folder of the journals; never a temporary one, because a reboot empties those."""
        folder = self.journal_dir or os.environ.get(DEFAULT_VARIABLES["journal_dir"]) or JOURNAL_FOLDER
        return Path(folder).absolute()


@cache
def _usual_policy(preset: str | None, rolls_back: bool) -> RollbackPolicy:
    policy = RollbackPolicy() if preset is None else RollbackPolicy.preset(preset)
    return policy if rolls_back else replace(policy, max_rollbacks_in_all=0)


ACCEPTS: Mapping[str, Accepts] = {
    **{setting.name: setting.metadata["takes"] for setting in fields(Settings)},
    "options": instance_of(Options)["takes"],
    "disable": boolean()["takes"],
}
"""What each argument of `autolog()`, and each field of `Options`, accepts."""

DEFAULT_VARIABLES: Mapping[str, str] = {
    setting.name: setting.metadata["default_from"] for setting in fields(Settings) if "default_from" in setting.metadata
}
"""Environment variables of settings that are not given, by the name of the setting."""

_ELSEWHERE = {"disable", *(option.name for option in fields(Options))}
ARGUMENTS = tuple(name for name in ACCEPTS if name not in _ELSEWHERE)  # those of both `autolog()` and `attach()`


def settings_from_environment() -> dict[str, Any]:
    """Return the settings that environment variables override, as the metadata of the fields names them."""
    overrides: dict[str, Any] = {}
    for setting in fields(Settings):
        variable = setting.metadata.get("environment", "")
        if text := os.environ.get(variable):
            given = text != "0" if setting.default is False else value_of_text(text)
            overrides[setting.name] = ACCEPTS[setting.name].check(variable, given)
    return overrides


def value_of_text(text: str) -> object:
    """Read the value of a command-line option or environment variable: ``true``, ``none``, a number, or a text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text


THRESHOLDS = {
    "loss_spike_threshold": "LossSpike(threshold={}, threshold_alone=True)",
    "gradient_explosion_threshold": "GradientExplosion(threshold={}, threshold_alone=True)",
    "sdr_collapse_threshold": "SdrCollapse(unique={})",
}
"""Earlier arguments that are thresholds of detectors now."""
RENAMED = {"checkpoint_every": "rollback_checkpoint_interval", "select": "rollback_target"}
SYNONYMS = {
    "enable_divergence_rollback": "rollback=True",
    "enable_rollback": "rollback=True",
    "auto_rollback": "rollback=True",
    "log_interval": "log_every_n_steps=...",
    "log_freq": "log_every_n_steps=...",
    "log_every": "log_every_n_steps=...",
    "max_grad_norm": "options=Options(adaptive_clip=True), or torch.nn.utils.clip_grad_norm_ in the script",
    "callbacks": "alerts=...",
    "tags": "extra_tags=...",
}
"""Other names for arguments of `autolog()`, and what to write."""
ALWAYS_ON = {
    "enable_sdr_collapse_monitor": (
        "Sparse codes are always monitored; options=Options(sdr_check_interval=...) says how often."
    ),
    "enable_nan_detection": "Values that are not finite are always detected.",
    "track_gradients": "Gradient norms are always measured; layer_metrics=True logs them by layer.",
}
"""Features that need no argument."""
_CALLS = ("autolog", "attach", "RollbackPolicy", "RollbackPolicy.preset", "Options")
_MAX_VALUE_LENGTH = 40


def argument_place(call: str, name: str, value: object, has: Collection[str]) -> str:
    """Say where an argument is that a call does not have, and what to write; empty where that is unknown."""
    function = call.removesuffix("()")
    if "detectors" in has and name in THRESHOLDS:
        detector = THRESHOLDS[name].format(_source_of(value))
        return f'It is a threshold of a detector: {function}(detectors=["default", {detector}]).'
    if "detectors" in has and name == "rule":
        return f'A rule is part of a detector\'s name: {function}(detectors=["default", "loss_spike:classic"]).'
    if function not in _CALLS:
        return ""
    if name in ALWAYS_ON or name in SYNONYMS:
        return ALWAYS_ON.get(name) or f"Write {SYNONYMS[name]}."
    if function.startswith("RollbackPolicy") and name == "rollback":
        return "A policy without rollbacks is RollbackPolicy(max_rollbacks=0)."
    new = RENAMED.get(name, name)
    argument, outer = f"{new}={_source_of(value)}", function if function == "attach" else "autolog"
    if new in has:
        return f"It is called {new} now: {function}({argument})."
    if new in _names(RollbackPolicy):
        return f"It is a field of RollbackPolicy: {outer}(rollback=RollbackPolicy({argument}))."
    if new in _names(Options):
        return f"It is a field of Options: {outer}(options=Options({argument}))."
    return f"It is an argument of {outer}(): {outer}({argument})." if new in _names(Settings) else ""


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _source_of(value: object) -> str:
    text = repr(value) if isinstance(value, bool | int | float | str) else "..."
    return text if len(text) <= _MAX_VALUE_LENGTH else "..."
