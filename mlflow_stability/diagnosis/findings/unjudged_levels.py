"""Withdraws what was found in the level of a loss before it was known that the level does not measure progress.

In: what was judged while the training ran. Out: the same without those findings. Guarantees: what was found after the
fact was recorded stays, because detectors knew it by then.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlflow_stability.curves.curves import RunCurves, recorded_level
from mlflow_stability.vocabulary.loss_level import LOSS_LEVEL
from mlflow_stability.vocabulary.result import Event
from mlflow_stability.vocabulary.run import RunHistory

JUDGE_LEVELS = frozenset({"divergence", "loss_spike", "oscillation", "overfitting", "plateau", "slow_progress"})
"""The kinds of findings that judge the level of a loss."""


def without_unjudged_levels(events: Iterable[Event], history: RunHistory, curves: RunCurves) -> list[Event]:
    """The events of a run, without what its losses are not judged for."""
    if recorded_level(history).reason is None or any(curve.has_level for curve in curves.losses):
        return list(events)
    series = [metric.series for metric in history.of(LOSS_LEVEL)]
    known = min((int(each.attempts[0]), int(each.steps[0])) for each in series if len(each))
    return [each for each in events if each.kind not in JUDGE_LEVELS or (each.attempt, each.step) > known]
