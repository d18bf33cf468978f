"""Kinds of findings, alike ones in one file: documentation, thresholds, detectors, whole-curve rules.

Detectors can be run with thresholds of your own.

Example:

    >>> from mlflow_stability import judge
    >>> from mlflow_stability.kinds import LossSpike
    >>> losses = [2.0 / (1 + step / 60) + 0.01 * (step % 3) for step in range(600)]
    >>> losses[400] *= 1.3
    >>> [(episode.kind, episode.start) for episode in judge(losses, detectors=["divergence", "loss_spike"]).findings]
    [('loss_spike', 400)]
    >>> judge(losses, detectors=["divergence", LossSpike(smallest_rise=1.5)]).findings
    ()

Detectors are frozen dataclasses whose fields are their thresholds; ``mlflow-stability explain loss_spike`` lists them.
`autolog()`, `attach()`, `diagnose()`, `diagnose_all()`, `judge()` and `compare()` take them as ``detectors=``, beside
names, which mean the default of that kind.
"""

from __future__ import annotations

from mlflow_stability.kinds.catalog import DETECTORS, ON_REQUEST
from mlflow_stability.kinds.first_look.batches import (
    InputScale,
    LabelRange,
    OneClass,
    SameBatch,
    SameInput,
    TargetsIgnored,
    TargetSum,
    TargetsUnreachable,
)
from mlflow_stability.kinds.first_look.dimensions import SameOutput
from mlflow_stability.kinds.first_look.language import PaddingInLoss, TargetsInInput, TargetsInView
from mlflow_stability.kinds.first_look.precision import EpsilonLarge, GradientUnderflow, UpdatesLost
from mlflow_stability.kinds.first_look.settings import EqualWeights, UntiedWeights
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion, GradientExplosionClassic
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishing, GradientVanishingLayers
from mlflow_stability.kinds.gradients.layers import DeadLayer, GradientImbalance, LayerExplosion, WeightImbalance
from mlflow_stability.kinds.hardware.utilization import (
    LowGpuUtilization,
    LowMfu,
    MemoryPressure,
    StepTimeIncrease,
    ThroughputDrop,
)
from mlflow_stability.kinds.inside.activations import (
    ActivationNonfinite,
    DeadUnits,
    RepresentationCollapse,
    SaturatedActivation,
)
from mlflow_stability.kinds.inside.attention import AttentionCollapse, AttentionLogitGrowth
from mlflow_stability.kinds.inside.routing import DeadExpert, RouterCollapse
from mlflow_stability.kinds.inside.sparse_codes import SdrBitUsage, SdrCollapse, SdrLowDiversity, SdrTemperature
from mlflow_stability.kinds.loss.divergence import Divergence, DivergenceClassic
from mlflow_stability.kinds.loss.divergence_early import DivergenceAhead, DivergenceAtStart
from mlflow_stability.kinds.loss.loss_spike import LossSpike, LossSpikeClassic
from mlflow_stability.kinds.loss.nonfinite import InfDetected, NanDetected
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJump
from mlflow_stability.kinds.optimizer.learning_rate_schedule import (
    LearningRateOutOfRange,
    LearningRateRise,
    LearningRateZero,
)
from mlflow_stability.kinds.optimizer.loss_scaling import LossScaleCollapse, StepSkipped
from mlflow_stability.kinds.optimizer.update_size import AdamRmsHigh, UpdateRatioHigh, UpdateRatioLow, WeightSpike
from mlflow_stability.kinds.progress.no_progress import SlowProgress
from mlflow_stability.kinds.progress.oscillation import Oscillation
from mlflow_stability.kinds.progress.overfitting import Overfitting
from mlflow_stability.kinds.progress.plateau import Plateau
from mlflow_stability.kinds.progress.repeated_data import RepeatedData

__all__ = [
    "ActivationNonfinite",
    "AdamRmsHigh",
    "AttentionCollapse",
    "AttentionLogitGrowth",
    "DeadExpert",
    "DeadLayer",
    "DeadUnits",
    "Divergence",
    "DivergenceAhead",
    "DivergenceAtStart",
    "DivergenceClassic",
    "EpsilonLarge",
    "EqualWeights",
    "GradientExplosion",
    "GradientExplosionClassic",
    "GradientImbalance",
    "GradientUnderflow",
    "GradientVanishing",
    "GradientVanishingLayers",
    "InfDetected",
    "InputScale",
    "LabelRange",
    "LayerExplosion",
    "LearningRateJump",
    "LearningRateOutOfRange",
    "LearningRateRise",
    "LearningRateZero",
    "LossScaleCollapse",
    "LossSpike",
    "LossSpikeClassic",
    "LowGpuUtilization",
    "LowMfu",
    "MemoryPressure",
    "NanDetected",
    "OneClass",
    "Oscillation",
    "Overfitting",
    "PaddingInLoss",
    "Plateau",
    "RepeatedData",
    "RepresentationCollapse",
    "RouterCollapse",
    "SameBatch",
    "SameInput",
    "SameOutput",
    "SaturatedActivation",
    "SdrBitUsage",
    "SdrCollapse",
    "SdrLowDiversity",
    "SdrTemperature",
    "SlowProgress",
    "StepSkipped",
    "StepTimeIncrease",
    "TargetSum",
    "TargetsIgnored",
    "TargetsInInput",
    "TargetsInView",
    "TargetsUnreachable",
    "ThroughputDrop",
    "UntiedWeights",
    "UpdateRatioHigh",
    "UpdateRatioLow",
    "UpdatesLost",
    "WeightImbalance",
    "WeightSpike",
]

# The imports above are for type checkers and editors; a detector that is added as a file is here as well.
globals().update({detector.__name__: detector for detector in (*DETECTORS, *ON_REQUEST)})
