"""Every judgement there is, in the order in which they look.

In: names such as ``loss_spike`` or ``loss_spike:classic``. Out: detectors, what is known of each, and a text from which
the very same detectors are built again, so that "the same detectors" never silently means today's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from typing import Any

from mlflow_stability.detectors.engine.detector import Detector
from mlflow_stability.detectors.gradients.dead_layer import DeadLayer
from mlflow_stability.detectors.gradients.gradient_explosion import GradientExplosion, GradientExplosionClassic
from mlflow_stability.detectors.gradients.gradient_vanishing import GradientVanishing
from mlflow_stability.detectors.gradients.gradient_vanishing_layers import GradientVanishingLayers
from mlflow_stability.detectors.gradients.imbalance import GradientImbalance, WeightImbalance
from mlflow_stability.detectors.gradients.layer_explosion import LayerExplosion
from mlflow_stability.detectors.hardware.low_mfu import LowMfu
from mlflow_stability.detectors.hardware.memory_pressure import MemoryPressure
from mlflow_stability.detectors.hardware.step_time_increase import StepTimeIncrease
from mlflow_stability.detectors.hardware.throughput_drop import ThroughputDrop
from mlflow_stability.detectors.inside.activation_nonfinite import ActivationNonfinite
from mlflow_stability.detectors.inside.attention_collapse import AttentionCollapse
from mlflow_stability.detectors.inside.attention_logit_growth import AttentionLogitGrowth
from mlflow_stability.detectors.inside.dead_units import DeadUnits
from mlflow_stability.detectors.inside.representation_collapse import RepresentationCollapse
from mlflow_stability.detectors.inside.saturated_activation import SaturatedActivation
from mlflow_stability.detectors.inside.sdr_bit_usage import SdrBitUsage
from mlflow_stability.detectors.inside.sdr_collapse import SdrCollapse, SdrLowDiversity
from mlflow_stability.detectors.inside.sdr_temperature import SdrTemperature
from mlflow_stability.detectors.kind_documentation import FindingDocumentation, documentation_of
from mlflow_stability.detectors.loss.divergence import Divergence, DivergenceClassic
from mlflow_stability.detectors.loss.divergence_start import DivergenceStart
from mlflow_stability.detectors.loss.loss_spike import LossSpike, LossSpikeClassic
from mlflow_stability.detectors.loss.nonfinite import InfDetected, NanDetected
from mlflow_stability.detectors.loss.oscillation import Oscillation
from mlflow_stability.detectors.loss.overfitting import Overfitting
from mlflow_stability.detectors.loss.plateau import Plateau
from mlflow_stability.detectors.loss.repeated_data import RepeatedData
from mlflow_stability.detectors.loss.slow_progress import SlowProgress
from mlflow_stability.detectors.optimizer.adam_rms_high import AdamRmsHigh
from mlflow_stability.detectors.optimizer.learning_rate_jump import LearningRateJump
from mlflow_stability.detectors.optimizer.learning_rate_out_of_range import LearningRateOutOfRange
from mlflow_stability.detectors.optimizer.loss_scale_collapse import LossScaleCollapse
from mlflow_stability.detectors.optimizer.step_skipped import StepSkipped
from mlflow_stability.detectors.optimizer.update_ratio import UpdateRatioHigh, UpdateRatioLow
from mlflow_stability.detectors.optimizer.weight_spike import WeightSpike
from mlflow_stability.detectors.reported.autopilot import AUTOPILOT_KINDS
from mlflow_stability.detectors.reported.endings import WAYS_TO_END
from mlflow_stability.detectors.reported.representations import REPRESENTATION_KINDS
from mlflow_stability.detectors.reported.setup import SETUP_KINDS
from mlflow_stability.errors import SettingsError

DETECTORS: tuple[type[Detector], ...] = (
    NanDetected,
    InfDetected,
    LossSpike,
    Divergence,
    DivergenceStart,
    GradientExplosion,
    GradientVanishing,
    Plateau,
    Overfitting,
    LossScaleCollapse,
    StepSkipped,
    LearningRateJump,
    RepeatedData,
    GradientVanishingLayers,
    LayerExplosion,
    GradientImbalance,
    DeadLayer,
    UpdateRatioHigh,
    UpdateRatioLow,
    AdamRmsHigh,
    WeightSpike,
    WeightImbalance,
    Oscillation,
    SlowProgress,
    ThroughputDrop,
    StepTimeIncrease,
    MemoryPressure,
    LowMfu,
    AttentionCollapse,
    AttentionLogitGrowth,
    DeadUnits,
    SaturatedActivation,
    ActivationNonfinite,
    SdrCollapse,
    SdrLowDiversity,
    SdrBitUsage,
    SdrTemperature,
    RepresentationCollapse,
)
"""Those that look unless others are asked for."""
ON_REQUEST: tuple[type[Detector], ...] = (
    LossSpikeClassic,
    DivergenceClassic,
    GradientExplosionClassic,
    LearningRateOutOfRange,
)
"""Those that look only when they are asked for by name: the classic rules, and one that is for Adam's family alone."""
SEEN_FROM_OUTSIDE = (*WAYS_TO_END, *AUTOPILOT_KINDS, *SETUP_KINDS, *REPRESENTATION_KINDS)
"""What no detector finds: how a training ends, what the autopilot did, how the training is set up, what it came to."""
KINDS: tuple[str, ...] = tuple(dict.fromkeys(each.kind for each in (*DETECTORS, *ON_REQUEST, *SEEN_FROM_OUTSIDE)))
"""Every kind of trouble that there is a documentation for."""


def default_detectors(*, experimental: bool = True) -> tuple[Detector, ...]:
    """Those that look unless others are asked for, with their default thresholds."""
    return tuple(each() for each in DETECTORS if experimental or not each.experimental)


def named(names: Iterable[str]) -> tuple[Detector, ...]:
    """The detectors of these names, with their default thresholds."""
    return tuple(_by_name(name)() for name in names)


def name_of(detector: Detector | type[Detector]) -> str:
    """How a detector is asked for."""
    return f"{detector.kind}:{detector.rule}" if detector.rule else detector.kind


def described(detectors: Sequence[Detector]) -> str:
    """A text from which `built` makes the very same detectors."""
    return json.dumps([[name_of(each), asdict(each)] for each in detectors], separators=(",", ":"))  # type: ignore[call-overload]


def built(text: str) -> tuple[Detector, ...]:
    """The detectors that `described` was given."""
    try:
        return tuple(_with(_by_name(name), thresholds) for name, thresholds in json.loads(text))
    except (TypeError, ValueError) as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"This is no description of detectors ({error}): {text[:100]!r}") from None


def documentation(name: str) -> FindingDocumentation:
    """What is known of a kind, or of one rule that finds it: ``loss_spike``, ``loss_spike:classic``, ``killed``."""
    ways = {each.kind: each for each in SEEN_FROM_OUTSIDE}
    return documentation_of(ways[name] if name in ways else _by_name(name, also=list(ways)))


def _with(detector: type[Detector], thresholds: dict[str, Any]) -> Detector:
    known = {each.name for each in fields(detector)}  # type: ignore[arg-type]
    unknown = sorted(set(thresholds) - known)
    if unknown:
        raise SettingsError(f"{name_of(detector)} has no threshold {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    return detector(**thresholds)


def _by_name(name: str, also: Sequence[str] = ()) -> type[Detector]:
    known = {name_of(each): each for each in (*DETECTORS, *ON_REQUEST)}
    if name in known:
        return known[name]
    near = get_close_matches(name, [*known, *also], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join([*known, *also])}."
    raise SettingsError(f"There is no detector {name!r}; {hint}")
