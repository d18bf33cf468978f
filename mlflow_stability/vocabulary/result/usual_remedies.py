"""Remedies with numbers that several findings share."""

from __future__ import annotations

from dataclasses import replace

from mlflow_stability.vocabulary.result.action import Action
from mlflow_stability.vocabulary.result.remedy import Remedy

CLIP_AT_1 = Remedy(Action.CLIP_GRADIENTS, target=1.0)
LOWER_RATE = Remedy(Action.LOWER_LEARNING_RATE)
LOWER_RATE_2_TO_5 = Remedy(Action.LOWER_LEARNING_RATE, factor=(2.0, 5.0))
LOWER_RATE_3_TO_10 = Remedy(Action.LOWER_LEARNING_RATE, factor=(3.0, 10.0))
LOWER_RATE_5_TO_10 = Remedy(Action.LOWER_LEARNING_RATE, factor=(5.0, 10.0))
LOWER_RATE_OR_CLIP = replace(LOWER_RATE, alternative=CLIP_AT_1)
LOWER_RATE_2_TO_5_OR_CLIP = replace(LOWER_RATE_2_TO_5, alternative=CLIP_AT_1)
LOWER_RATE_3_TO_10_OR_WARM_UP = Remedy(Action.LOWER_RATE_OR_LENGTHEN_WARM_UP, factor=(3.0, 10.0))
RAISE_RATE_5_TO_10 = Remedy(Action.RAISE_LEARNING_RATE, factor=(5.0, 10.0))
RAISE_OR_LOWER_RATE = Remedy(Action.RAISE_OR_LOWER_LEARNING_RATE, factor=10.0)
RAISE_TEMPERATURE_2_TO_3 = Remedy(Action.RAISE_TEMPERATURE, factor=(2.0, 3.0))
LOWER_BETA2 = Remedy(Action.LOWER_BETA2, target=(0.95, 0.98))
WARM_UP_LEARNING_RATE = Remedy(Action.WARM_UP_LEARNING_RATE, target=(1.0, 5.0))
WITH_NUMBERS = (
    CLIP_AT_1,
    LOWER_RATE_2_TO_5,
    LOWER_RATE_3_TO_10,
    LOWER_RATE_5_TO_10,
    LOWER_RATE_OR_CLIP,
    LOWER_RATE_2_TO_5_OR_CLIP,
    LOWER_RATE_3_TO_10_OR_WARM_UP,
    RAISE_RATE_5_TO_10,
    RAISE_OR_LOWER_RATE,
    RAISE_TEMPERATURE_2_TO_3,
    LOWER_BETA2,
    WARM_UP_LEARNING_RATE,
)
"""All of them that a run recorded before may have as sentences."""
