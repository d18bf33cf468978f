"""Detect layers whose gradient norm jumped far above its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import LAYERS, Detector, Point
from mlflow_stability.detectors.episodes import EpisodeFilter
from mlflow_stability.detectors.finding_type import Instability, Moves
from mlflow_stability.detectors.layer_values import LayerRound
from mlflow_stability.detectors.loss_fall import FirstValues
from mlflow_stability.vocabulary.facts import RiseFacts, times_beyond
from mlflow_stability.vocabulary.result import CLIP_AT_1, LOWER_RATE_2_TO_5, Action, Finding, Remedy


@dataclass(frozen=True, slots=True)
class LayerExplosionFacts(RiseFacts):
    """The gradient norm of a layer that jumped; of several the one with the largest jump."""

    kind = "layer_explosion"
    metrics: ClassVar = {
        "grad_norm": "value",
        "level": "baseline",
        "z": "sigmas",
        "jumped": "jumped",
        "layers": "layers",
    }

    sigmas: float
    """How far the norm is above its baseline, in σ of its noise."""
    threshold: float
    """The threshold in σ, without that of the norm's own noise."""
    jumped: int
    """Number of layers that jumped together."""
    layers: int
    """Number of layers that were measured."""

    @property
    def exceeds(self) -> float | None:
        """By how many times the threshold in σ is exceeded."""
        return times_beyond(self.sigmas, self.threshold)

    def sentence(self, step: int, unit: str = "step", /) -> str:
        others = f"; {self.jumped} of {self.layers} layers jumped together" if self.jumped > 1 else ""
        return (
            f"gradient norm of {self.place} {self.value:.4g} at {unit} {step}, {self.value / self.baseline:,.0f} times "
            f"its baseline of {self.baseline:.4g} (threshold {self.ratio:g} times){others}."
        )


@dataclass(slots=True)
class LayerExplosionState:
    round: LayerRound = field(default_factory=LayerRound)
    episode_filter: EpisodeFilter = field(default_factory=EpisodeFilter)
    begun: dict[str, FirstValues] = field(default_factory=dict)
    """The first norms of each layer."""


@dataclass(frozen=True, slots=True)
class LayerExplosion(Detector):
    """The gradient norm of a layer jumped far above its baseline.

    What it sees: the gradient norm of a layer at least {threshold}σ above its baseline and {smallest_rise} times as
    high. Heavy-tailed noise raises that σ to {share_of_tail} times what it reaches once in {baseline.TAIL:one_in}
    measurements. Norms below {loss_fall.LEARNT:percent} of the first norm never count. Layers are measured every few
    steps, so it finds an explosion that lasts or that falls on a measurement. Of layers that jump together the largest
    jump is named. The finding ends after {calm_rounds} normal measurements.

    Why it matters: it shows which layer makes the whole gradient explode, and finds a small layer before the whole norm
    shows it.

    What to try: inspect this layer's weights and inputs; clip gradients at 1.0; lower the learning rate by a factor of
    2 to 5.

    When it is wrong: layers that few batches reach, and layers that start to learn late. No finding in 117 healthy
    trainings of 39 kinds (96,000 measured values).

    Reference: Pascanu et al. (arXiv:1211.5063); GLM-130B (arXiv:2210.02414, 3)
    """

    threshold: float = 5.5
    """Threshold in σ of the norm's logarithm above its baseline."""
    share_of_tail: float = 0.7
    """Factor on the σ that the norm's own noise reaches once in {baseline.TAIL:one_in} measurements; the higher
    threshold counts."""
    smallest_rise: float = 8.0
    """Minimum ratio of the norm to its baseline."""
    calm_rounds: int = 3
    """Number of normal measurements in a row that end the finding."""

    kind = "layer_explosion"
    instability = Instability.HARMFUL
    noun = "an explosion of one layer"
    plural = "explosions of single layers"
    question = "In which layer did the gradient explode first?"
    check_by_hand = (
        "Print the norm of each parameter's gradient at the last steps before it; look at the earliest jump."
    )
    order = 150
    quantities = ("loss", "grad_norm")
    compared = ("grad_norm",)
    across_places = True
    places = LAYERS
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "share_of_tail": "times",
        "smallest_rise": "power",
    }
    remedies = (Remedy(Action.INSPECT_LAYER), CLIP_AT_1, LOWER_RATE_2_TO_5)
    state_type = LayerExplosionState

    def step(self, state: LayerExplosionState, point: Point) -> tuple[LayerExplosionState, Finding | None]:
        layers = state.round.take(point, "grad_norm")
        if not layers:
            return state, None
        for layer in layers:
            if layer.finite:
                state.begun.setdefault(layer.place, FirstValues()).take(layer.value)
        jumped = [layer for layer in layers if self._is_high(layer) and state.begun[layer.place].matters(layer.value)]
        if not jumped:
            if state.episode_filter.reported:
                state.episode_filter.note_calm(self.calm_rounds)
            return state, None
        if not state.episode_filter.report(self.severities[-1]):
            return state, None
        worst = max(jumped, key=lambda layer: layer.value / layer.center)
        value, level, z, place = worst.value, worst.center, worst.z, worst.place
        facts = LayerExplosionFacts(
            value, level, self.smallest_rise, z, self.threshold, len(jumped), len(layers), place=place
        )
        return state, self.finding(worst, self.severities[-1], facts)

    def _is_high(self, layer: Point) -> bool:
        limit = max(self.threshold, self.share_of_tail * layer.tail)
        rises = layer.center > 0 and layer.value >= layer.center * self.smallest_rise
        return layer.finite and rises and layer.z >= limit
