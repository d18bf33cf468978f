"""Leaves out remedies that make no sense for this run, whatever found its troubles.

In: a run, its episodes and its cause. Out: both with remedies that fit. Promised: nobody is told to leave fp16 who does
not train in it, or to raise a temperature that was not measured; where it was found where a NaN was born, nobody is
told to look for it; where one operation or one batch broke, nobody is told to lower the learning rate or to clip, for a
NaN is left as it is by both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mlflow_stability.detectors.activation_nonfinite import ActivationNonfinite
from mlflow_stability.detectors.inf_detected import InfDetected
from mlflow_stability.detectors.nan_detected import NanDetected
from mlflow_stability.diagnosis.half_precision import in_half_precision
from mlflow_stability.diagnosis.origin_reading import KIND, NEAR
from mlflow_stability.diagnosis.remedies import AGAINST
from mlflow_stability.vocabulary.cause import Cause
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.run_history import RunHistory

OF_HALF_PRECISION = re.compile(r"\b(?:fp16|half precision|loss scale)\b", re.IGNORECASE)
OF_TEMPERATURE = "Raise the temperature"
"""How remedies begin that only codes made at a temperature can follow."""
INSTEAD = re.compile(r"^Train in bf16 instead of fp16")
NON_FINITE = frozenset({"nan_detected", "inf_detected"})
BREAKING = NON_FINITE | {"activation_nonfinite"}
LOOKING = frozenset(
    {
        *NanDetected.remedies[:2],
        next(each for each in InfDetected.remedies if each.startswith("Look for")),
        *ActivationNonfinite.remedies,
    }
)
"""What to look for where nobody knows yet what broke."""
CALMER = re.compile(r"^(?:Lower the learning rate|Clip gradients)")
NOT_BY_SIZE = frozenset(
    {
        "bad_batch",
        "damaged_weights",
        "gradient_non_finite",
        "hardware",
        "invalid_operation",
        "loss_function",
        "tensor_from_outside",
    }
)
"""Causes that smaller updates do nothing about."""


def with_fitting_remedies(episodes: Sequence[Episode], history: RunHistory) -> tuple[Episode, ...]:
    """The same episodes and causes, with remedies that fit this run."""
    half, tempered = in_half_precision(history), bool(history.of("sdr_temperature"))

    def fitted(episode: Episode) -> Episode:
        cause = episode.cause
        if cause is not None:
            cause = replace(cause, remedies=_fitting(cause.remedies or AGAINST.get(cause.name, ()), half, tempered))
        remedies = _fitting(_left_to_do(episode, episodes, cause), half, tempered)
        return replace(episode, remedies=remedies, cause=cause)

    return tuple(fitted(each) for each in episodes)


def _fitting(remedies: Iterable[str], half: bool | None, tempered: bool) -> tuple[str, ...]:
    """Without those of fp16 where it was not used, as a condition where nobody knows; without those of temperatures."""
    remedies = [each for each in remedies if tempered or not each.startswith(OF_TEMPERATURE)]
    if half is None:
        return tuple(INSTEAD.sub("If it trains in fp16: train in bf16 instead", each) for each in remedies)
    return tuple(each for each in remedies if half or not OF_HALF_PRECISION.search(each))


def _left_to_do(episode: Episode, episodes: Sequence[Episode], cause: Cause | None) -> tuple[str, ...]:
    """An episode's remedies, without those to find out what was found out: where its first NaN was born."""
    if episode.kind not in BREAKING or not _was_found(episode, episodes):
        return episode.remedies
    calm = cause is None or cause.name not in NOT_BY_SIZE
    return tuple(each for each in episode.remedies if each not in LOOKING and (calm or not CALMER.search(each)))


def _was_found(episode: Episode, episodes: Sequence[Episode]) -> bool:
    """Whether it is known where that was born of which the episode is, or which it came of."""
    mine = [each for each in episodes if each.attempt == episode.attempt]
    breaks = [each for each in mine if each.kind in NON_FINITE and each.start <= episode.start + NEAR]
    begun = max((each.start for each in breaks), default=episode.start)
    return any(each.kind == KIND and each.start - NEAR <= begun <= each.end + NEAR for each in mine)
