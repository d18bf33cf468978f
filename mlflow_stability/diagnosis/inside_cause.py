"""Looks for the cause inside: attention that grew, units that died, codes that became alike, an optimizer that lags.

In: what the probes measured of layers up to the beginning. Out: the layer where it went furthest. What such a layer
does is asked after the learning rate and the data, for it is mostly what they did to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlflow_stability.diagnosis.curves import Curve
from mlflow_stability.diagnosis.look import Look, is_it, is_not, not_seen
from mlflow_stability.diagnosis.surroundings import Surroundings, shown


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that can go wrong inside."""

    quantity: str
    name: str
    """Of the cause."""
    what: str
    """The sentence; takes `place`, `first` and `last`."""
    ill: Callable[[float, float], bool]
    """Whether it is, from the first value and the last before the trouble."""
    far: Callable[[float, float], float]
    """How far it went, so that the worst layer is named."""
    certainty: str = "likely"
    strictly: bool = False
    """Whether it counts only from before the step of the trouble: in that very step it comes of the trouble itself."""


SIGNS = (
    Sign(
        "attention_max_logit",
        "attention_logit_growth",
        "The attention logits of {place} had grown from {first} to {last}: attention that sees one place only, and has "
        "no gradient left.",
        lambda first, last: last > max(100.0, 2 * first) or last > max(50.0, 10 * first),
        lambda first, last: last / max(first, 1e-9),
    ),
    Sign(
        "attention_entropy",
        "attention_collapse",
        "The attention of {place} had collapsed: its entropy fell from {first} of the highest possible to {last}.",
        lambda first, last: last < 0.05 and first > 0.1,
        lambda first, last: first - last,
    ),
    Sign(
        "sdr_unique_ratio",
        "sdr_collapse",
        "The codes of {place} had become alike: {last} of their patterns were unique, {first} at the start.",
        lambda _, last: last < 0.3,
        lambda _, last: 1 - last,
    ),
    # Adam's second moment lags behind gradients that grow: a spike comes 1-8 steps later (arXiv:2304.13013, figure 9).
    Sign(
        "adam_rms",
        "optimizer_lag",
        "Gradients of {place} had outrun what Adam remembers of their size: their AdamW RMS rose from {first} to "
        "{last}, which makes steps too large.",
        lambda first, last: last > 2.3 and last > 2 * first,
        lambda first, last: last / max(first, 1e-9),
        "possible",
        strictly=True,
    ),
    Sign(
        "activation_dead",
        "dead_units",
        "Units of {place} had died: a share of {last} is never active, {first} at the start.",
        lambda first, last: last > 0.5 and last > first + 0.2,
        lambda first, last: last - first,
        "possible",
    ),
    Sign(
        "activation_saturation",
        "saturated_activation",
        "Units of {place} were pinned: a share of {last} stood at the ends of its activation, {first} at the start.",
        lambda first, last: last > 0.5 and last > first + 0.2,
        lambda first, last: last - first,
        "possible",
    ),
    Sign(
        "effective_rank",
        "representation_collapse",
        "The outputs of {place} had collapsed: their effective rank fell from {first} to {last}.",
        lambda first, last: last < 0.1 * first,
        lambda first, last: first / max(last, 1e-9),
        "possible",
    ),
)


def inside_look(around: Surroundings) -> Look:
    """What had gone wrong inside the model before it showed."""
    seen = False
    for sign in SIGNS:
        until = around.episode.start - sign.strictly
        known = [(each, _ends(each, until)) for each in around.of(sign.quantity)]
        ends = [(curve, pair) for curve, pair in known if pair is not None]
        seen = seen or bool(ends)
        ill = [(curve, pair) for curve, pair in ends if sign.ill(*pair)]
        if not ill:
            continue
        curve, (first, last) = max(ill, key=lambda each: sign.far(*each[1]))
        place = curve.place or "the model"
        return is_it(
            sign.name,
            sign.what.format(place=place, first=shown(first), last=shown(last)),
            f"{len(ill)} of {len(ends)} measured places show it" if len(ends) > 1 else "",
            certainty=sign.certainty,
            place=curve.place,
        )
    return (
        is_not("the inside of the model: attention, units and codes as before")
        if seen
        else not_seen("inside: neither attention nor activations were measured before it")
    )


def _ends(curve: Curve, until: int) -> tuple[float, float] | None:
    """The usual value at the start and the last one before the trouble."""
    values = curve.values[(curve.steps <= until) & np.isfinite(curve.values)]
    return None if len(values) < 2 else (float(np.median(values[: max(1, len(values) // 4)])), float(values[-1]))
