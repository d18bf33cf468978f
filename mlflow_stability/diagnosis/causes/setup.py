"""Looks for the cause in the set-up of the training: mistakes that a look at its first steps has found."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it
from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.kinds.first_look.equal_weights import EqualWeights
from mlflow_stability.kinds.first_look.inputs import InputScale, SameInput
from mlflow_stability.kinds.first_look.loss_broadcast import LossBroadcast
from mlflow_stability.kinds.first_look.loss_input import Activation, LossInput, LossInputFacts
from mlflow_stability.kinds.first_look.module_settings import AccumulationSum, OptimizedTwice, StrongDropout
from mlflow_stability.kinds.first_look.not_trained import NoGradient, NotOptimized
from mlflow_stability.kinds.first_look.precision import EpsilonLarge, GradientUnderflow, UpdatesLost
from mlflow_stability.kinds.first_look.targets import LabelRange, OneClass, TargetsIgnored, TargetsUnreachable
from mlflow_stability.kinds.first_look.unregistered import UnregisteredModule
from mlflow_stability.kinds.optimizer.clipping_strong import StrongClipping
from mlflow_stability.kinds.optimizer.learning_rate_zero import LearningRateZero
from mlflow_stability.kinds.optimizer.weight_decay_strong import StrongWeightDecay
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

OF_A_STANDSTILL = (
    *(
        LossInput,
        LossBroadcast,
        EqualWeights,
        SameInput,
        StrongWeightDecay,
        NoGradient,
        NotOptimized,
        UnregisteredModule,
    ),
    *(LearningRateZero, GradientUnderflow, UpdatesLost, EpsilonLarge, StrongClipping, InputScale, OneClass),
    *(TargetsIgnored, TargetsUnreachable, StrongDropout),
)
"""What keeps a training from learning, the most direct first."""
OF_A_RISE = (LossInput, LabelRange, InputScale, OptimizedTwice, AccumulationSum, OneClass)
"""What makes a loss rise, or fall without end, the most direct first."""


def standstill_check(around: EpisodeContext) -> CheckResult:
    """Whether a mistake in the set-up was found that keeps the model from learning."""
    found = [finding for kind in OF_A_STANDSTILL for finding in around.found(kind.kind)]
    return _first_warning(found, around)


def rise_check(around: EpisodeContext) -> CheckResult:
    """Whether a mistake in the set-up was found that makes a loss or gradients grow."""
    found = [finding for kind in OF_A_RISE for finding in around.found(kind.kind) if _is_unbounded(finding)]
    return _first_warning(found, around)


def _is_unbounded(finding: Finding) -> bool:
    """False for probabilities in place of logits, which hold a loss back."""
    facts = finding.known(LossInputFacts)
    return facts is None or facts.activation is Activation.LINEAR


def _first_warning(found: Sequence[Finding], around: EpisodeContext) -> CheckResult:
    for finding in found:
        if finding.severity >= Severity.WARNING or finding.kind == AccumulationSum.kind:
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
        "A mistake in the set-up keeps the model from learning, or makes its loss unbounded.",
        "A finding about the set-up: an input that the loss does not expect, a loss over all pairs, inputs of an "
        "unusual size or the same for each row, batches of one class, ignored targets, too strong a weight decay or "
        "clipping, parameters without a gradient or without an optimizer, modules that are not registered, a learning "
        "rate of zero, steps or gradients that precision takes away.",
        "A mistake that costs little beside another one.",
        (Remedy(Action.CHECK_INTENTION),),
        helped_by_smaller_updates=False,
        phrase="mistake in the set-up",
    ),
)
CHECKS = (
    Check(standstill_check, {Symptom.STUCK: 5, Symptom.VANISHING: 5}, frozenset({"setup"})),
    Check(rise_check, {Symptom.RISING: 5, Symptom.NON_FINITE: 5}, frozenset({"setup"})),
)
