"""Names every layer that a finding is about: a detector names one, the rest are read from the record.

In: episodes and the run's history. Out: the episodes; those about layers say how many others are affected and name
them, and have the value of each as ``layer.NAME`` among their metrics. Those about gradients know the gradient flow:
the share of layers in a healthy band. Guarantees: thresholds are those of the detectors; nothing is added without
values by layer.
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
from mlflow_stability.vocabulary.measured import is_whole_model
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory

FEWEST = 3
"""With fewer values before, nobody knows what is usual of a layer."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer at the step of a finding."""

    place: str
    value: float
    usual: float
    """The median of its values before; 0 where there are too few."""


Affected = Callable[[_Layer, Sequence[_Layer], float], bool]
"""Whether a layer is affected, from all layers and the limit that the finding names."""


def _largest(layers: Sequence[_Layer]) -> float:
    return max((each.value for each in layers if isfinite(each.value)), default=0.0)


def _faded(layer: _Layer, layers: Sequence[_Layer], _limit: float) -> bool:
    limit = max(GradientVanishingLayers().smallest, GradientVanishingLayers().share_of_last * layers[-1].value)
    return 0 < layer.value < limit


def _jumped(times: float) -> Affected:
    return lambda layer, _, __: layer.usual > 0 and layer.value >= times * layer.usual


AFFECTED: Mapping[str, tuple[str, Affected]] = {
    "gradient_vanishing": ("grad_norm", _faded),
    "dead_layer": ("grad_norm", lambda layer, _, __: layer.value == 0),
    "gradient_imbalance": (
        "grad_norm",
        lambda layer, every, __: 0 < layer.value * GradientImbalance().ratio < _largest(every),
    ),
    "layer_explosion": ("grad_norm", _jumped(LayerExplosion().smallest_rise)),
    "weight_imbalance": (
        "param_norm",
        lambda layer, every, __: 0 < layer.value * WeightImbalance().ratio < _largest(every),
    ),
    "weight_spike": ("param_norm", _jumped(WeightSpike().smallest_rise)),
    "update_ratio_high": ("update_ratio", lambda layer, _, limit: layer.value > (limit or UpdateRatioHigh().highest)),
    "update_ratio_low": ("update_ratio", lambda layer, _, __: 0 < layer.value < UpdateRatioLow().lowest),
}
"""Of each type, what its layers are judged by, and which of them it is about."""


def with_affected_layers(
    episodes: Iterable[Finding], history: RunHistory, starts: Mapping[int, int]
) -> tuple[Finding, ...]:
    """The same episodes, those about layers with all of them."""
    curves: dict[str, tuple[Curve, ...]] = {}
    return tuple(_of(each, history, starts, curves) if each.kind in AFFECTED else each for each in episodes)


def _of(
    episode: Finding, history: RunHistory, starts: Mapping[int, int], curves: dict[str, tuple[Curve, ...]]
) -> Finding:
    quantity, affected = AFFECTED[episode.kind]
    if quantity not in curves:
        curves[quantity] = curves_of(history, quantity, starts)
    order = {metric.meaning.place: at for at, metric in enumerate(history.of(quantity))}
    mine = [each for each in curves[quantity] if each.attempt == episode.attempt and not is_whole_model(each.place)]
    mine.sort(key=lambda each: order.get(each.place, len(order)))
    layers = [found for each in mine if (found := _at(each, episode.start)) is not None]
    if not layers:
        return episode
    exceeded = episode.known(LimitFacts)
    limit = 0.0 if exceeded is None else exceeded.threshold
    if quantity == "grad_norm":
        flow = GradientFlowFacts(round(gradient_flow(layer.value for layer in layers), 4))
        episode = replace(episode, also=(*episode.also, flow))
    others = [layer for layer in layers if layer.place != episode.place and affected(layer, layers, limit)]
    jumped = episode.known(LayerExplosionFacts)
    if jumped is not None and jumped.jumped > 1:  # its sentence says how many; by its own baselines, so name as many
        known = [layer for layer in layers if layer.place != episode.place and 0 < layer.usual <= layer.value]
        most = sorted(known, key=lambda layer: -layer.value / layer.usual)[: jumped.jumped - 1]
        others = [layer for layer in known if layer in most]
    if not others:
        return episode
    values = tuple((layer.place, layer.value) for layer in others)
    return with_note(episode, OtherLayersNote(values, bool(episode.place)))


def _at(curve: Curve, step: int) -> _Layer | None:
    """The layer at the first measurement from a step on."""
    at = int(np.searchsorted(curve.steps, step, side="left"))
    if at >= len(curve.values):
        return None
    before = curve.values[:at][np.isfinite(curve.values[:at])]
    return _Layer(curve.place, float(curve.values[at]), float(np.median(before)) if len(before) >= FEWEST else 0.0)
