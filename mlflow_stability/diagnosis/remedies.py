"""Says what to change in a training, most useful first.

In: the episodes of a run and the cause that was found. Out: sentences, each once: what goes against the cause, then
what goes against its worst and earliest episodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlflow_stability.detectors.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.gradient_vanishing import GradientVanishing
from mlflow_stability.detectors.learning_rate_jump import LearningRateJump
from mlflow_stability.detectors.loss_scale_collapse import LossScaleCollapse
from mlflow_stability.vocabulary.diagnosis import Cause
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
}
"""What goes against each cause; the other causes are what their episode says."""


def remedies_of(episodes: Sequence[Episode], cause: Cause | None) -> tuple[str, ...]:
    """What to change."""
    serious = [each for each in episodes if each.severity >= Severity.WARNING]
    ranked = sorted(serious, key=lambda each: (-each.severity, each.attempt, each.start))
    against = AGAINST.get(cause.name, ()) if cause is not None else ()
    kept: dict[str, frozenset[str]] = {}
    for remedy in (*against, *(remedy for each in ranked for remedy in each.remedies)):
        words = frozenset(re.findall(r"[\w.-]*\w", remedy.lower()))
        if not any(words <= said for said in kept.values()):
            kept[remedy] = words
    return tuple(kept)
