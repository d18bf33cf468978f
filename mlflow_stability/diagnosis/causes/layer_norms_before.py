"""Finds the layer where gradients explode or end, in the last look at the layers.

In: what lies around an episode. Out: the layer and a sentence about it; None where layers were not measured in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown

STANDS_OUT = 5.0
"""A layer whose gradient norm is so many times its own usual one has exploded."""
ENDS_BELOW = 0.01
"""Where a layer's gradient norm is below this share of the next one's, gradients end there."""


@dataclass(frozen=True, slots=True)
class LayerBefore:
    """The layer, and what speaks for it."""

    place: str
    sentence: str


def exploding_layer(around: EpisodeContext) -> LayerBefore | None:
    """The layer whose gradient stands out most from its own past, looked at just before or at the beginning."""
    found: list[tuple[float, str, str]] = []
    for curve in around.of("grad_norm"):
        near = (curve.steps <= around.episode.start) & np.isfinite(curve.values)
        steps, values = curve.steps[near], curve.values[near]
        if not curve.place or len(values) < 4 or around.episode.start - int(steps[-1]) > around.reach:
            continue
        usual, last = float(np.median(values[:-1])), float(values[-1])
        if last > STANDS_OUT * usual > 0:
            where = f"{shown(last)} at {around.unit} {int(steps[-1])}"
            said = f"largest increase in {curve.place}: {where} (baseline {shown(usual)})"
            found.append((last / usual, curve.place, said))
    return None if not found else LayerBefore(*max(found)[1:])


def last_layer_with_gradient(around: EpisodeContext) -> LayerBefore | None:
    """The layer from which on, counted from the output, next to nothing is left of the gradient."""
    layers = [(each.place, each.values[each.finite]) for each in around.of("grad_norm") if each.place]
    norms = [(place, float(np.median(values[-3:]))) for place, values in layers if len(values)]
    for (place, norm), (later, above) in zip(norms[-2::-1], norms[:0:-1], strict=True):
        if norm < ENDS_BELOW * above:
            said = f"from {place} down: norm {shown(norm)} there, {shown(above)} in {later} after it"
            return LayerBefore(place, said)
    return None
