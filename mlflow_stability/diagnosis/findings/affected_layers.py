"""Name every layer that a finding is about: a detector names one, the others are read from the record.

Thresholds are those of the detectors. Findings about gradients also get the gradient flow: the share of layers in a
healthy band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from mlflow_stability.curves.curves import Curve, curves_of
from mlflow_stability.detectors.layer_values import gradient_flow
from mlflow_stability.diagnosis.findings.notes import GradientFlowFacts, OtherLayersNote, with_note
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishingLayers
from mlflow_stability.kinds.gradients.layers import (
    GradientImbalance,
    LayerExplosion,
    LayerExplosionFacts,
    WeightImbalance,
)
from mlflow_stability.kinds.optimizer.update_size import UpdateRatioHigh, UpdateRatioLow, WeightSpike
from mlflow_stability.vocabulary.facts import LimitFacts
from mlflow_stability.vocabulary.measured.signal import is_whole_model
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory

MIN_EARLIER_VALUES = 3
"""With fewer values before, the usual value of a layer is not known."""


@dataclass(frozen=True, slots=True)
class _Layer:
    place: str
    value: float
    usual: float  # the median of its values before; 0 where there are too few


IsAffected = Callable[[_Layer, Sequence[_Layer], float], bool]
"""Accepts a layer, all layers, and the limit that the finding names."""


def _largest(layers: Sequence[_Layer]) -> float:
    return max((layer.value for layer in layers if isfinite(layer.value)), default=0.0)


def _vanished(layer: _Layer, layers: Sequence[_Layer], _limit: float) -> bool:
    limit = max(GradientVanishingLayers().smallest, GradientVanishingLayers().share_of_last * layers[-1].value)
    return 0 < layer.value < limit


def _jumped(times: float) -> IsAffected:
    return lambda layer, _, __: layer.usual > 0 and layer.value >= times * layer.usual


def _is_small(ratio: float) -> IsAffected:
    return lambda layer, layers, __: 0 < layer.value * ratio < _largest(layers)


AFFECTED: Mapping[str, tuple[str, IsAffected]] = {
    "gradient_vanishing": ("grad_norm", _vanished),
    "dead_layer": ("grad_norm", lambda layer, _, __: layer.value == 0),
    "gradient_imbalance": ("grad_norm", _is_small(GradientImbalance().ratio)),
    "layer_explosion": ("grad_norm", _jumped(LayerExplosion().smallest_rise)),
    "weight_imbalance": ("param_norm", _is_small(WeightImbalance().ratio)),
    "weight_spike": ("param_norm", _jumped(WeightSpike().smallest_rise)),
    "update_ratio_high": ("update_ratio", lambda layer, _, limit: layer.value > (limit or UpdateRatioHigh().highest)),
    "update_ratio_low": ("update_ratio", lambda layer, _, __: 0 < layer.value < UpdateRatioLow().lowest),
}
"""For each kind the quantity by layer, and which layers are affected."""


def with_affected_layers(
    findings: Iterable[Finding], history: RunHistory, starts: Mapping[int, int]
) -> tuple[Finding, ...]:
    curves: dict[str, tuple[Curve, ...]] = {}
    return tuple(_with_layers(f, history, starts, curves) if f.kind in AFFECTED else f for f in findings)


def _with_layers(
    finding: Finding, history: RunHistory, starts: Mapping[int, int], curves: dict[str, tuple[Curve, ...]]
) -> Finding:
    quantity, is_affected = AFFECTED[finding.kind]
    if quantity not in curves:
        curves[quantity] = curves_of(history, quantity, starts)
    order = {metric.meaning.place: place for place, metric in enumerate(history.of(quantity))}
    by_layer = [c for c in curves[quantity] if c.attempt == finding.attempt and not is_whole_model(c.place)]
    by_layer.sort(key=lambda curve: order.get(curve.place, len(order)))
    layers = [layer for curve in by_layer if (layer := _layer_at(curve, finding.start)) is not None]
    if not layers:
        return finding
    exceeded = finding.facts_as(LimitFacts)
    limit = 0.0 if exceeded is None else exceeded.threshold
    if quantity == "grad_norm":
        flow = GradientFlowFacts(round(gradient_flow(layer.value for layer in layers), 4))
        finding = replace(finding, also=(*finding.also, flow))
    others = [layer for layer in layers if layer.place != finding.place and is_affected(layer, layers, limit)]
    explosion = finding.facts_as(LayerExplosionFacts)
    if explosion is not None and explosion.jumped > 1:  # its sentence has a number, by its own baselines: name as many
        risen = [layer for layer in layers if layer.place != finding.place and 0 < layer.usual <= layer.value]
        most = sorted(risen, key=lambda layer: -layer.value / layer.usual)[: explosion.jumped - 1]
        others = [layer for layer in risen if layer in most]
    if not others:
        return finding
    values = tuple((layer.place, layer.value) for layer in others)
    return with_note(finding, OtherLayersNote(values, bool(finding.place)))


def _layer_at(curve: Curve, step: int) -> _Layer | None:
    """Return the layer at its first measurement from a step on."""
    place = int(np.searchsorted(curve.steps, step, side="left"))
    if place >= len(curve.values):
        return None
    before = curve.values[:place][np.isfinite(curve.values[:place])]
    usual = float(np.median(before)) if len(before) >= MIN_EARLIER_VALUES else 0.0
    return _Layer(curve.place, float(curve.values[place]), usual)
