"""One file for each kind of finding: documentation, thresholds, detector, whole-curve rule.

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
from mlflow_stability.kinds.first_look.equal_weights import EqualWeights
from mlflow_stability.kinds.first_look.inputs import InputScale, SameInput
from mlflow_stability.kinds.first_look.precision import EpsilonLarge, GradientUnderflow, UpdatesLost
from mlflow_stability.kinds.first_look.targets import LabelRange, OneClass, TargetsIgnored, TargetsUnreachable
from mlflow_stability.kinds.first_look.untied_weights import UntiedWeights
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion, GradientExplosionClassic
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishing, GradientVanishingLayers
from mlflow_stability.kinds.gradients.layers import DeadLayer, GradientImbalance, LayerExplosion, WeightImbalance
from mlflow_stability.kinds.hardware.low_gpu_utilization import LowGpuUtilization
from mlflow_stability.kinds.hardware.low_mfu import LowMfu
from mlflow_stability.kinds.hardware.memory_pressure import MemoryPressure
from mlflow_stability.kinds.hardware.step_time_increase import StepTimeIncrease
from mlflow_stability.kinds.hardware.throughput_drop import ThroughputDrop
from mlflow_stability.kinds.inside.activation_nonfinite import ActivationNonfinite
from mlflow_stability.kinds.inside.attention_collapse import AttentionCollapse
from mlflow_stability.kinds.inside.attention_logit_growth import AttentionLogitGrowth
from mlflow_stability.kinds.inside.dead_expert import DeadExpert
from mlflow_stability.kinds.inside.dead_units import DeadUnits
from mlflow_stability.kinds.inside.representation_collapse import RepresentationCollapse
from mlflow_stability.kinds.inside.router_collapse import RouterCollapse
from mlflow_stability.kinds.inside.saturated_activation import SaturatedActivation
from mlflow_stability.kinds.inside.sdr_bit_usage import SdrBitUsage
from mlflow_stability.kinds.inside.sdr_collapse import SdrCollapse, SdrLowDiversity
from mlflow_stability.kinds.inside.sdr_temperature import SdrTemperature
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
from mlflow_stability.kinds.progress.oscillation import Oscillation
from mlflow_stability.kinds.progress.overfitting import Overfitting
from mlflow_stability.kinds.progress.plateau import Plateau
from mlflow_stability.kinds.progress.repeated_data import RepeatedData
from mlflow_stability.kinds.progress.slow_progress import SlowProgress

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
    "Plateau",
    "RepeatedData",
    "RepresentationCollapse",
    "RouterCollapse",
    "SameInput",
    "SaturatedActivation",
    "SdrBitUsage",
    "SdrCollapse",
    "SdrLowDiversity",
    "SdrTemperature",
    "SlowProgress",
    "StepSkipped",
    "StepTimeIncrease",
    "TargetsIgnored",
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
