"""Other names for kinds of findings, and suggestions for unknown ones."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

KIND_SYNONYMS = {
    "nan": "nan_detected",
    "nans": "nan_detected",
    "inf": "inf_detected",
    "infinity": "inf_detected",
    "spike": "loss_spike",
    "spikes": "loss_spike",
    "diverged": "divergence",
    "diverging": "divergence",
    "explosion": "gradient_explosion",
    "exploding": "gradient_explosion",
    "exploding_gradient": "gradient_explosion",
    "exploding_gradients": "gradient_explosion",
    "vanishing": "gradient_vanishing",
    "vanishing_gradient": "gradient_vanishing",
    "vanishing_gradients": "gradient_vanishing",
    "overfit": "overfitting",
    "skip": "step_skipped",
    "skipped": "step_skipped",
    "skipped_steps": "step_skipped",
    "rollbacks": "rollback",
    "oom": "out_of_memory",
    "memory": "memory_pressure",
    "mfu": "low_mfu",
    "throughput": "throughput_drop",
    "sdr": "sdr_collapse",
    "lr": "learning_rate_out_of_range",
    "learning_rate": "learning_rate_out_of_range",
    "learning_rate_changed": "learning_rate_jump",
    "crash": "crashed",
    "kill": "killed",
    "hang": "stall",
    "stalled": "stall",
    "dead": "dead_layer",
    "dead_layers": "dead_layer",
    "nan_loss": "nan_detected",
    "nan_inf": "nan_detected",
    "nan_gradient": "nan_detected",
    "nonfinite": "nan_detected",
    "loss_explosion": "divergence",
    "loss_divergence": "divergence",
    "gradient_spike": "gradient_explosion",
    "grad_spike": "gradient_explosion",
    "grad_explosion": "gradient_explosion",
    "grad_vanishing": "gradient_vanishing",
    "training_stall": "plateau",
    "stagnation": "plateau",
    "slow_training": "slow_progress",
    "slow_convergence": "slow_progress",
    "poor_generalization": "overfitting",
    "poor_generalisation": "overfitting",
}
"""Kinds of findings by other names; no name of a kind is a key."""


def resolve_kind(typed: str, kinds: Collection[str]) -> str:
    """Return the kind that was meant, such as `nan_detected` for `NaN`; else what was typed, in lower case."""
    name = typed.strip().lower().replace("-", "_").replace(" ", "_")
    if name in kinds:
        return name
    kind = KIND_SYNONYMS.get(name, name)
    return kind if kind in kinds else name


def similar_kinds(name: str, kinds: Collection[str]) -> list[str]:
    """Return at most three kinds that may have been meant: by meaning, then by spelling, then by words."""
    words = set(name.split("_"))
    by_meaning = [kind for synonym, kind in KIND_SYNONYMS.items() if synonym in words and kind in kinds]
    by_word = [kind for kind in kinds if words & set(kind.split("_"))]
    by_spelling = get_close_matches(name, kinds, n=3, cutoff=0.5) or [kind for kind in kinds if name and name in kind]
    return list(dict.fromkeys([*by_meaning, *by_spelling, *by_word]))[:3]
