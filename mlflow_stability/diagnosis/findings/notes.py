"""What a diagnosis adds to a finding: how it went on, how often it came, where else it was seen.

Each is a `Facts` with a sentence of its own, behind the one of the finding. A detector names one layer; the others are
read from the record, by the thresholds of the detectors. Findings about gradients also get the gradient flow: the share
of layers in a healthy band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from mlflow_stability.curves.curves import Curve, curves_of
from mlflow_stability.detectors.layer_values import gradient_flow
from mlflow_stability.kinds.gradients.gradient_vanishing import GradientVanishingLayers
from mlflow_stability.kinds.gradients.layers import (
    GradientImbalance,
    LayerExplosion,
    LayerExplosionFacts,
    WeightImbalance,
)
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.optimizer.update_size import UpdateRatioHigh, UpdateRatioLow, WeightSpike
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.measured.signal import is_whole_model
from mlflow_stability.vocabulary.result import Finding, Statement
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.phrases import counted, some_of

NAMED_LAYERS = 5  # number of layers that a sentence names; the evidence holds all


@dataclass(frozen=True, slots=True)
class RipplesNote(Facts):
    """Slow rises that recovered, many of them."""

    signal: str
    count: int
    last_step: int
    smallest: float  # smallest rise, as a share of the level before
    largest: float  # largest rise, as a share of the level before

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss rose slowly and recovered 4 times between step 100 and step 900, by 3% to 8%.``"""
        return (
            f"{self.signal} rose slowly and recovered {self.count} times between {unit} {step} and {unit} "
            f"{self.last_step}, by {self.smallest:.0%} to {self.largest:.0%}."
        )


@dataclass(frozen=True, slots=True)
class RepeatedNote(Facts):
    """A finding that came several times; `step` is the last one."""

    count: int

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``Found 3 times, last at step 120.``"""
        return f"Found {self.count} times, last at {unit} {step}."


@dataclass(frozen=True, slots=True)
class SaidAgainNote(Facts):
    """A line that a log repeats; `step` is the last one."""

    count: int

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``Logged 3 times until step 120.``"""
        return f"Logged {self.count} times until {unit} {step}."


@dataclass(frozen=True, slots=True)
class SkippedToTheEnd(Facts):
    """Steps that a log says were skipped, up to its end; `step` is the first one."""

    count: int
    last_step: int

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``40 steps skipped from step 200 to the end of the run at step 240 (reported by the log).``"""
        return (
            f"{counted(self.count, unit)} skipped from {unit} {step} to the end of the run at {unit} {self.last_step} "
            "(reported by the log)."
        )


@dataclass(frozen=True, slots=True)
class CountRose(Facts):
    """A count that a script logs rose; `step` is where."""

    signal: str
    before: float
    after: float

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``rollback_count rose from 1 to 2 at step 300.``"""
        return f"{self.signal} rose from {self.before:g} to {self.after:g} at {unit} {step}."


@dataclass(frozen=True, slots=True)
class NanAfterInf(Facts):
    nan: Facts
    infinity: NonFiniteFacts

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss is NaN at step 401.``: without a last finite value that the infinity names, too."""
        sentence = self.nan.sentence(step, unit)
        return sentence.replace(self.infinity.last_finite_clause, "", 1)


@dataclass(frozen=True, slots=True)
class GradientFlowFacts(Facts):
    gradient_flow: float  # Share of layers whose gradient norm lies in a healthy band

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``gradient flow 83%``."""
        return f"gradient flow {self.gradient_flow:.0%}"


@dataclass(frozen=True, slots=True)
class OtherLayersNote(Facts):
    layers: tuple[tuple[str, float], ...]  # name and value of each
    beside_one: bool  # whether the finding itself names one

    def numbers(self) -> dict[str, float]:
        """The values, as ``layer.NAME``."""
        return {f"layer.{name}": value for name, value in self.layers}

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Also in 2 other layers: blocks.0, blocks.1.``"""
        count = len(self.layers)
        where = f"Also in {counted(count, 'other layer')}" if self.beside_one else f"In {counted(count, 'layer')}"
        return f"{where}: {some_of([name for name, _ in self.layers], NAMED_LAYERS)}."


def with_note(finding: Finding, *notes: Facts, step: int | None = None) -> Finding:
    """Add notes to a finding, about its first step or another one."""
    at = finding.start if step is None else step
    return replace(finding, statements=(*finding.stated, *(Statement(note, at) for note in notes)))


def also_known(telling: Finding, *others: Finding) -> tuple[Facts, ...]:
    """Return the facts of several findings that are one, except those that its sentence is made of."""
    every = [facts for finding in (telling, *others) for facts in (finding.facts, *finding.also)]
    return tuple(dict.fromkeys(facts for facts in every if facts != telling.facts))


def with_lines(findings: Iterable[Finding], history: RunHistory, starts: Mapping[int, int]) -> tuple[Finding, ...]:
    """Add the line of the log at which each finding begins."""
    metrics = {metric.name: metric for metric in history.metrics if metric.lines is not None}
    return tuple(_with_line(finding, metrics.get(finding.metric), starts) for finding in findings)


def _with_line(finding: Finding, metric: Metric | None, starts: Mapping[int, int]) -> Finding:
    if metric is None or metric.lines is None:
        return finding
    places = np.flatnonzero(metric.series.steps == finding.start)
    attempts = [starts.get(attempt, attempt) for attempt in metric.series.attempts[places].tolist()]
    lines = [int(metric.lines[at]) for at, attempt in zip(places, attempts, strict=True) if attempt == finding.attempt]
    return replace(finding, line=lines[0]) if lines else finding


MIN_EARLIER_VALUES = 3  # with fewer values before, the usual value of a layer is not known


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
