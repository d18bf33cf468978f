"""Where an argument is that a call does not have: it is a field of another object, was renamed, or is not needed.

In: the call, and the name and value that it was given. Out: a sentence that says what to write. Guarantees: fields are
read from their classes, so that one that is moved is answered without a line here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Options, Settings

THRESHOLDS = {
    "loss_spike_threshold": "LossSpike(threshold={}, threshold_alone=True)",
    "gradient_explosion_threshold": "GradientExplosion(threshold={}, threshold_alone=True)",
    "sdr_collapse_threshold": "SdrCollapse(unique={})",
}
"""Arguments of before that are thresholds of detectors."""
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
"""Arguments of `autolog()` by other names, and what to write."""
ALWAYS_ON = {
    "enable_sdr_collapse_monitor": (
        "Sparse codes are always monitored; options=Options(sdr_check_interval=...) says how often."
    ),
    "enable_nan_detection": "Values that are not finite are always detected.",
    "track_gradients": "Gradient norms are always measured; layer_metrics=True logs them by layer.",
}
"""What needs no argument."""
_TAKERS = ("autolog", "attach", "RollbackPolicy", "RollbackPolicy.preset", "Options")
_LONGEST = 40


def place_of(call: str, name: str, value: object, has: Collection[str]) -> str:
    """A sentence about an argument that a call lacks, with what to write; empty where nothing is known."""
    function = call.removesuffix("()")
    if "detectors" in has and name in THRESHOLDS:
        detector = THRESHOLDS[name].format(_written(value))
        return f'It is a threshold of a detector: {function}(detectors=["default", {detector}]).'
    if "detectors" in has and name == "rule":
        return f'A rule is part of a detector\'s name: {function}(detectors=["default", "loss_spike:classic"]).'
    if function not in _TAKERS:
        return ""
    if name in ALWAYS_ON or name in SYNONYMS:
        return ALWAYS_ON.get(name) or f"Write {SYNONYMS[name]}."
    if function.startswith("RollbackPolicy") and name == "rollback":
        return "A policy without rollbacks is RollbackPolicy(max_rollbacks=0)."
    new = RENAMED.get(name, name)
    argument, outer = f"{new}={_written(value)}", function if function == "attach" else "autolog"
    if new in has:
        return f"It is called {new} now: {function}({argument})."
    if new in _names(RollbackPolicy):
        return f"It is a field of RollbackPolicy: {outer}(rollback=RollbackPolicy({argument}))."
    if new in _names(Options):
        return f"It is a field of Options: {outer}(options=Options({argument}))."
    return f"It is an argument of {outer}(): {outer}({argument})." if new in _names(Settings) else ""


def _names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def _written(value: object) -> str:
    text = repr(value) if isinstance(value, bool | int | float | str) else "..."
    return text if len(text) <= _LONGEST else "..."
