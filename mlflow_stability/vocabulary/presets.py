"""The presets: for each purpose, the settings that it changes. Every preset sets the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_stability.vocabulary.argument import one_of


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings for one purpose; arguments that are given take precedence."""

    name: str
    meaning: str
    settings: Mapping[str, Any]  # arguments of `autolog()` and fields of its `Options`
    policy: Mapping[str, Any]  # fields of `RollbackPolicy`
    adam_rms_every_step: bool = False  # measure AdamW's RMS at every step; else with the layers


_MEANINGS = {
    "research": "Looks more often and acts early: an unnecessary rollback of an experiment costs little.",
    "production": "Measures little and acts late: a long training is rolled back only for good reason, and further.",
    "debugging": "Measures and saves everything often, and raises where rollbacks do not help. Slow.",
}
_SETTINGS = {  # research, production, debugging
    "log_every_n_steps": (10, 20, 1),
    "layers_every_n_steps": (50, 500, 10),
    "layer_metrics": (False, False, True),
    "attention_every_n_steps": (200, 0, 50),
    "sdr_check_interval": (50, 500, 10),
    "sensitivity": ("normal", "low", "high"),
    "capture_batch": (True, True, "upload"),
}
_POLICIES: Mapping[str, tuple[Any, Any, Any]] = {
    "divergence_threshold": (1.5, 2.5, 1.2),
    "consecutive_divergence_steps": (3, 5, 3),
    "recovery_patience": (10, 50, 10),
    "rollback_checkpoint_interval": (500, 1000, 100),
    "max_checkpoints": (10, 5, 20),
    "snapshot_every": (100, 100, 20),
    "snapshot_share": (0.01, 0.01, 0.1),
    "rewind": (40, 100, 40),
    "onset_lag": (16, 32, 16),
    "on_give_up": (None, None, "raise"),
    # Options that change healthy steps after an alarm: no preset enables them.
    "reset_at_spike": (False, False, False),
    "cut_learning_rate": (None, None, None),
    "largest_scale": (None, None, None),
    "act_ahead": (None, None, None),
}

PRESETS: Mapping[str, Preset] = {
    name: Preset(
        name,
        meaning,
        {setting: values[column] for setting, values in _SETTINGS.items()},
        {option: values[column] for option, values in _POLICIES.items()},
        adam_rms_every_step=name != "production",
    )
    for column, (name, meaning) in enumerate(_MEANINGS.items())
}
PRESET = one_of(*PRESETS, optional=True)  # what ``preset=`` accepts


def with_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings and, where they are missing, those of the given preset."""
    name = PRESET["takes"].check("preset", given.get("preset"))
    return {**({} if name is None else PRESETS[name].settings), **given}
