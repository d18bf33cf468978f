"""The detectors, to run them with thresholds of your own.

Example:

    >>> from mlflow_stability import judge
    >>> from mlflow_stability.kinds import LossSpike
    >>> losses = [2.0 / (1 + step / 60) + 0.01 * (step % 3) for step in range(600)]
    >>> losses[400] *= 1.3
    >>> [(episode.kind, episode.start) for episode in judge(losses, detectors=["divergence", "loss_spike"]).episodes]
    [('loss_spike', 400)]
    >>> judge(losses, detectors=["divergence", LossSpike(smallest_rise=1.5)]).episodes
    ()

Detectors are frozen dataclasses whose fields are their thresholds; ``mlflow-stability explain loss_spike`` lists them.
`autolog()`, `attach()`, `diagnose()`, `diagnose_all()`, `judge()` and `compare()` take them as ``detectors=``, beside
names, which mean the default of that kind.
"""

from __future__ import annotations

from mlflow_stability.detectors.catalog import DETECTORS, ON_REQUEST
from mlflow_stability.detectors.gradients import (
    DeadLayer,
    GradientExplosion,
    GradientExplosionClassic,
    GradientImbalance,
    GradientVanishing,
    GradientVanishingLayers,
    LayerExplosion,
    WeightImbalance,
)
from mlflow_stability.detectors.hardware import LowMfu, MemoryPressure, StepTimeIncrease, ThroughputDrop
from mlflow_stability.detectors.inside import (
    ActivationNonfinite,
    AttentionCollapse,
    AttentionLogitGrowth,
    DeadExpert,
    DeadUnits,
    RepresentationCollapse,
    RouterCollapse,
    SaturatedActivation,
    SdrBitUsage,
    SdrCollapse,
    SdrLowDiversity,
    SdrTemperature,
)
from mlflow_stability.detectors.loss import (
    Divergence,
    DivergenceAhead,
    DivergenceAtStart,
    DivergenceClassic,
    InfDetected,
    LossSpike,
    LossSpikeClassic,
    NanDetected,
    Oscillation,
    Overfitting,
    Plateau,
    RepeatedData,
    SlowProgress,
)
from mlflow_stability.detectors.optimizer import (
    AdamRmsHigh,
    LearningRateJump,
    LearningRateOutOfRange,
    LossScaleCollapse,
    StepSkipped,
    UpdateRatioHigh,
    UpdateRatioLow,
    WeightSpike,
)

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
    "GradientExplosion",
    "GradientExplosionClassic",
    "GradientImbalance",
    "GradientVanishing",
    "GradientVanishingLayers",
    "InfDetected",
    "LayerExplosion",
    "LearningRateJump",
    "LearningRateOutOfRange",
    "LossScaleCollapse",
    "LossSpike",
    "LossSpikeClassic",
    "LowMfu",
    "MemoryPressure",
    "NanDetected",
    "Oscillation",
    "Overfitting",
    "Plateau",
    "RepeatedData",
    "RepresentationCollapse",
    "RouterCollapse",
    "SaturatedActivation",
    "SdrBitUsage",
    "SdrCollapse",
    "SdrLowDiversity",
    "SdrTemperature",
    "SlowProgress",
    "StepSkipped",
    "StepTimeIncrease",
    "ThroughputDrop",
    "UpdateRatioHigh",
    "UpdateRatioLow",
    "WeightImbalance",
    "WeightSpike",
]

# The imports above are for type checkers and editors; a detector that is added as a file is here as well.
globals().update({detector.__name__: detector for detector in (*DETECTORS, *ON_REQUEST)})
