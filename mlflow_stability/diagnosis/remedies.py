"""Says what to change in a training, most useful first.

In: the episodes of a run, its outcome and the cause of it. Out: sentences, each once: what goes against the cause, then
what goes against the episode that decides the outcome, then against the worst and earliest others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlflow_stability.detectors.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.gradient_vanishing import GradientVanishing
from mlflow_stability.detectors.learning_rate_jump import LearningRateJump
from mlflow_stability.detectors.loss_scale_collapse import LossScaleCollapse
from mlflow_stability.detectors.repeated_data import RepeatedData
from mlflow_stability.diagnosis.deciding import deciding_of
from mlflow_stability.diagnosis.remedy_topics import one_of_each
from mlflow_stability.vocabulary.cause import Cause
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity

AGAINST: dict[str, tuple[str, ...]] = {
    "learning_rate_jump": LearningRateJump.remedies,
    "learning_rate_too_high": ("Lower the learning rate 2-5 times.",),
    "learning_rate_too_low": ("Raise the learning rate.",),
    "no_warm_up": ("Warm the learning rate up over 1-5 % of the steps.",),
    "bad_batch": ("Look at the batch of this step.",),
    "overflow": ("Train in bf16 instead of fp16.", "Look for the module whose output overflows."),
    "fp16_scale": LossScaleCollapse.remedies,
    "gradient_explosion": GradientExplosion.remedies,
    "vanishing_gradients": GradientVanishing.remedies,
    "gradient_non_finite": (
        "Keep what goes into roots, divisions and norms away from zero: add a small number.",
        "Lower the loss scale, or train in bf16, where gradients come back through half precision.",
    ),
    "gradients_not_cleared": ("Look whether optimizer.zero_grad() runs in every step, or after each accumulation.",),
    "loss_function": ("Look at the labels, and at logarithms, roots and divisions in the loss function.",),
    "invalid_operation": ("Keep what goes into this operation within its range: clamp it, or add a small number.",),
    "tensor_from_outside": ("Look at the tensor that the script keeps there.",),
    "optimizer_state": ("Go back to a state from before.", "Lower beta2 or clip gradients; give eps a larger value."),
    "damaged_weights": (
        "Go back to weights and optimizer state from before.",
        "Look at what writes into weights besides the optimizer, and at the memory of the device.",
    ),
    "hardware": ("Test the device, and run the same step on another.",),
    "weight_decay": ("Lower the weight decay.", "Go back to weights from before."),
    "optimizer_lag": (
        "Lower Adam's beta2 to 0.95-0.98.",
        "Clip updates by their RMS, as StableAdamW does, or train with SPAMAdam.",
    ),
    "configuration_changed": ("See whether what was changed is meant.",),
    "frozen_parameters": ("See whether these parameters are meant to be frozen.",),
    "repeated_data": RepeatedData.remedies,
    "constant_output": ("Look whether the output of the model depends on its input.",),
    "attention_logit_growth": ("Normalise queries and keys, or clip them.", "Lower the learning rate 2-5 times."),
    "attention_collapse": ("Normalise queries and keys, or clip them.", "Lower the learning rate 2-5 times."),
    "sdr_collapse": ("Raise the temperature 2-3 times.", "Add a loss that tells tokens apart.", "Enlarge the code."),
    "saturated_activation": ("Lower the learning rate.", "Normalise what goes into the activation."),
    "representation_collapse": (
        "Lower the learning rate.",
        "Look at the loss: it may reward one answer to all.",
    ),
    "dead_units": ("Lower the learning rate.", "Use an activation that has a slope everywhere."),
}
"""What goes against each cause; the other causes are what their episode says."""


def remedies_of(episodes: Sequence[Episode], cause: Cause | None, outcome: str) -> tuple[str, ...]:
    """What to change; of the cause and the episodes the remedies that fit the run, as they bear them."""
    serious = [each for each in episodes if each.severity >= Severity.WARNING]
    deciding = deciding_of(outcome, serious)
    ranked = sorted(serious, key=lambda each: (each is not deciding, -each.severity, each.attempt, each.start))
    against = cause.remedies if cause is not None else ()
    kept: dict[str, frozenset[str]] = {}
    every = (*against, *(remedy for each in ranked for remedy in each.remedies))
    for remedy in one_of_each(every, "" if cause is None else cause.name):
        words = frozenset(re.findall(r"[\w.-]*\w", remedy.lower()))
        if not any(words <= said for said in kept.values()):
            kept[remedy] = words
    return tuple(kept)
