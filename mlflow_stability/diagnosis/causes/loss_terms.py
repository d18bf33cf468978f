"""Find causes in the terms of the loss: one that was added, and one whose weight grew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import changed_terms, curves_of
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.catalog import CauseDocumentation, Check, CheckResult, cause_found
from mlflow_stability.diagnosis.causes.context import LOOKBACK, EpisodeContext
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class TermLimits:
    grown: float = 2.0
    """Minimum factor on the weight of a term before an episode for it to be the cause."""


LIMITS = TermLimits()
REMEDIES = (Remedy(Action.LOWER_WEIGHT_OF_TERM),)


def terms_check(context: EpisodeContext) -> CheckResult:
    """Check whether the loss got another term, or a term a larger weight, before the episode."""
    distance = context.reach / LOOKBACK.just_before
    first, last = context.episode.start - LOOKBACK.points * distance, context.latest
    near = [change for change in changed_terms(context.history) if first <= change[0] <= last]
    if near and near[-1][1] < near[-1][2]:
        step, before, after = near[-1]
        return cause_found(
            "loss_term_changed",
            f"The loss got more terms at {context.unit} {step}: {before:.0f} before, {after:.0f} or more from then on.",
            since=step,
            certainty="certain" if step >= context.episode.start - context.reach else "possible",
            remedies=REMEDIES,
        )
    for weight in curves_of(context.history, "loss_weight"):
        begin = max(0, int(np.searchsorted(weight.steps, first, "right")) - 1)  # in force at the first step
        values, steps = weight.values[begin:], weight.steps[begin:]
        values = values[steps <= last]
        if len(values) > 1 and 0 < LIMITS.grown * values[0] <= values[-1]:
            step, low, high = int(steps[1]), values[0], values[-1]
            return cause_found(
                "loss_term_changed",
                f"The weight of a term of the loss rose from {low:.3g} to {high:.3g} from {context.unit} {step} on.",
                since=step,
                remedies=REMEDIES,
            )
    return CheckResult()


CAUSES = (
    CauseDocumentation(
        "loss_term_changed",
        "The loss got another term, or a term a larger weight.",
        "The graph of the loss adds up more terms than in the steps before, or multiplies one by a number that grew "
        "{LIMITS.grown}-fold, within the {LOOKBACK.points} points before.",
        "A term that is added at the same time as other data come.",
        REMEDIES,
    ),
)
CHECKS = (
    Check(
        terms_check,
        {Symptom.RISING: 4, Symptom.NON_FINITE: 4, Symptom.LARGE_UPDATES: 4},
        frozenset({"loss_term_changed"}),
    ),
)
