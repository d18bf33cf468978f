"""Says in which layer the gradient leapt far above its own level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.engine.debounce import EpisodeFilter
from mlflow_stability.detectors.engine.detector import LAYERS, Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves
from mlflow_stability.detectors.engine.layer_values import LayerRound
from mlflow_stability.detectors.engine.loss_fall import Beginning
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class LayerNorms:
    """What has been seen so far."""

    round: LayerRound = field(default_factory=LayerRound)
    gate: EpisodeFilter = field(default_factory=EpisodeFilter)
    begun: dict[str, Beginning] = field(default_factory=dict)
    """Of each layer."""


@dataclass(frozen=True, slots=True)
class LayerExplosion(Detector):
    """The gradient of a layer leapt far above its own level.

    What it sees: the gradient norm of a layer, at least 5.5 widths of its own noise and 8 times above its level; a
    heavy tail raises the 5.5, and below a hundredth of where it began nothing is an explosion. Layers are measured now
    and then, so that it finds an explosion that lasts, or that falls on a measurement. Of layers that leap together the
    one that leapt most is named. One finding until 3 measurements have been calm.

    Why it matters: it shows where an explosion of the whole gradient comes from, and one of a small layer before the
    whole shows it.

    What to try: look at this layer's weights and inputs; clip the gradients at 1.0; lower the learning rate 2-5 times.

    When it is wrong: layers that few batches reach, and layers that begin to learn late. It spoke in none of 117
    healthy trainings of 39 kinds (96,000 measured values).

    Reference: Pascanu et al. (arXiv:1211.5063); GLM-130B (arXiv:2210.02414, 3)
    """

    threshold: float = 5.5
    """The least z of the norm's logarithm."""
    share_of_tail: float = 0.7
    """The least z as a share of what the norm's own noise reaches once in 100,000 measurements."""
    smallest_rise: float = 8.0
    """The least norm as a multiple of its level."""
    calm_rounds: int = 3
    """After how many calm measurements in a row the trouble is over."""

    kind = "layer_explosion"
    noun = "an explosion of one layer"
    plural = "explosions of single layers"
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
    remedies = (
        "Look at the weights and the inputs of this layer.",
        "Clip gradients at 1.0.",
        "Lower the learning rate 2-5 times.",
    )
    state_type = LayerNorms

    def step(self, state: LayerNorms, point: Point) -> tuple[LayerNorms, Event | None]:
        """Look at the next norm of a layer; they are judged when the step is complete."""
        layers = state.round.take(point, "grad_norm")
        if not layers:
            return state, None
        for each in layers:
            if each.finite:
                state.begun.setdefault(each.place, Beginning()).take(each.value)
        leapt = [each for each in layers if self._leapt(each) and state.begun[each.place].matters(each.value)]
        if not leapt:
            if state.gate.said:
                state.gate.quiet(self.calm_rounds)
            return state, None
        if not state.gate.speaks(self.severities[-1]):
            return state, None
        worst = max(leapt, key=lambda each: each.value / each.center)
        others = f"; {len(leapt)} of {len(layers)} layers leapt together" if len(leapt) > 1 else ""
        return state, finding(
            self,
            worst,
            self.severities[-1],
            f"grad_norm of {worst.place} is {worst.value:.4g} at step {worst.step}, "
            f"{worst.value / worst.center:,.0f} times its level of {worst.center:.4g}{others}.",
            {
                "grad_norm": worst.value,
                "level": worst.center,
                "z": worst.z,
                "leapt": float(len(leapt)),
                "layers": float(len(layers)),
            },
        )

    def _leapt(self, point: Point) -> bool:
        limit = max(self.threshold, self.share_of_tail * point.tail)
        return (
            point.finite and point.center > 0 and point.z >= limit and point.value >= point.center * self.smallest_rise
        )
