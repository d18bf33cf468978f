"""The presets: for each purpose, every setting that it changes.

Guarantees: every preset sets the same ones, so that a table of them has no holes; what is given beside it comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_stability.vocabulary.argument import one_of


@dataclass(frozen=True, slots=True)
class Preset:
    """One preset."""

    name: str
    meaning: str
    settings: Mapping[str, Any]
    """Arguments of `autolog()` and fields of its `Options`."""
    policy: Mapping[str, Any]
    """Fields of `RollbackPolicy`."""
    adam_rms_every_step: bool = False
    """Measure AdamW's RMS at every step; else it is measured with the layers."""


_ON_REQUEST: Mapping[str, Any] = {
    "reset_at_spike": False,
    "cut_learning_rate": None,
    "largest_scale": None,
    "act_ahead": None,
}
"""Options that change healthy steps after an alarm: no preset switches them on."""

PRESETS: Mapping[str, Preset] = {
    each.name: each
    for each in (
        Preset(
            "research",
            "Looks more often and acts early: an unnecessary rollback of an experiment costs little.",
            {
                "log_every_n_steps": 10,
                "layers_every_n_steps": 50,
                "layer_metrics": False,
                "attention_every_n_steps": 200,
                "sdr_check_interval": 50,
                "sensitivity": "normal",
                "capture_batch": True,
            },
            {
                "divergence_threshold": 1.5,
                "consecutive_divergence_steps": 3,
                "recovery_patience": 10,
                "rollback_checkpoint_interval": 500,
                "max_checkpoints": 10,
                "snapshot_every": 100,
                "snapshot_share": 0.01,
                "rewind": 40,
                "onset_lag": 16,
                "on_give_up": None,
                **_ON_REQUEST,
            },
            adam_rms_every_step=True,
        ),
        Preset(
            "production",
            "Measures little and acts late: a long training is rolled back only for good reason, and further.",
            {
                "log_every_n_steps": 20,
                "layers_every_n_steps": 500,
                "layer_metrics": False,
                "attention_every_n_steps": 0,
                "sdr_check_interval": 500,
                "sensitivity": "low",
                "capture_batch": True,
            },
            {
                "divergence_threshold": 2.5,
                "consecutive_divergence_steps": 5,
                "recovery_patience": 50,
                "rollback_checkpoint_interval": 1000,
                "max_checkpoints": 5,
                "snapshot_every": 100,
                "snapshot_share": 0.01,
                "rewind": 100,
                "onset_lag": 32,
                "on_give_up": None,
                **_ON_REQUEST,
            },
        ),
        Preset(
            "debugging",
            "Measures and saves everything often, and raises where rollbacks do not help. Slow.",
            {
                "log_every_n_steps": 1,
                "layers_every_n_steps": 10,
                "layer_metrics": True,
                "attention_every_n_steps": 50,
                "sdr_check_interval": 10,
                "sensitivity": "high",
                "capture_batch": "upload",
            },
            {
                "divergence_threshold": 1.2,
                "consecutive_divergence_steps": 3,
                "recovery_patience": 10,
                "rollback_checkpoint_interval": 100,
                "max_checkpoints": 20,
                "snapshot_every": 20,
                "snapshot_share": 0.1,
                "rewind": 40,
                "onset_lag": 16,
                "on_give_up": "raise",
                **_ON_REQUEST,
            },
            adam_rms_every_step=True,
        ),
    )
}
PRESET = one_of(*PRESETS, optional=True)
"""What ``preset=`` takes."""


def with_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, and beneath it what its preset sets."""
    name = PRESET["takes"].checked("preset", given.get("preset"))
    return {**({} if name is None else PRESETS[name].settings), **given}
