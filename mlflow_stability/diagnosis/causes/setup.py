"""Looks for the cause in the set-up of the training: mistakes that a look at its first steps has found."""

from __future__ import annotations

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.kinds.first_look.loss_broadcast import LossBroadcast
from mlflow_stability.kinds.first_look.loss_input import LossInput
from mlflow_stability.kinds.first_look.not_trained import NoGradient, NotOptimized
from mlflow_stability.kinds.first_look.unregistered import UnregisteredModule
from mlflow_stability.kinds.optimizer.learning_rate_zero import LearningRateZero
from mlflow_stability.kinds.optimizer.weight_decay_strong import StrongWeightDecay
from mlflow_stability.vocabulary.result import Action, Remedy, Severity

MISTAKES = (LossInput, LossBroadcast, StrongWeightDecay, NoGradient, NotOptimized, UnregisteredModule, LearningRateZero)
"""What keeps a training from learning, the most direct first."""


def setup_check(around: EpisodeContext) -> CheckResult:
    """Whether a mistake in the set-up was found that keeps the model from learning."""
    for kind in MISTAKES:
        for finding in around.said(kind.kind):
            if finding.severity >= Severity.WARNING:
                since = min(finding.step, around.episode.start)
                return is_it(
                    "setup",
                    finding.message,
                    since=since,
                    remedies=finding.remedies,
                    repeats=((finding.kind, finding.step),),
                )
    return CheckResult()


CAUSES = (
    CauseDocumentation(
        "setup",
        "A mistake in the set-up keeps the model from learning.",
        "A finding of the first steps: probabilities in place of logits, a loss over all pairs, too strong a weight "
        "decay, parameters without a gradient or without an optimizer, modules that are not registered, a learning "
        "rate of zero.",
        "A mistake that costs little beside another one.",
        (Remedy(Action.CHECK_INTENTION),),
        helped_by_smaller_updates=False,
        phrase="mistake in the set-up",
    ),
)
CHECKS = (Check(setup_check, {Symptom.STUCK: 5, Symptom.VANISHING: 5}, frozenset({"setup"})),)
