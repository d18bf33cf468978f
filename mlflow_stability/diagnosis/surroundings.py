"""What lies around the beginning of an episode: the curves in which its cause may be seen.

In: an episode, a history and its curves. Out: loss, gradient norm, learning rates and loss scale of the same start of
the training, with ways to ask for what came just before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.diagnosis.curves import Curve, RunCurves, curves_of
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.run_history import RunHistory

JUST_BEFORE = 50
"""So many logged points before the first bad one are just before it."""
EARLY = 0.05
"""An episode within this share of the run began early; so did one within the first hundred steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Surroundings:
    """One episode and the curves around it."""

    episode: Episode
    history: RunHistory
    loss: Curve | None
    norm: Curve | None
    """Of the whole model, or of the episode's own place; that of another layer says nothing about it."""
    rates: tuple[Curve, ...]
    scale: Curve | None

    @property
    def is_early(self) -> bool:
        """Whether it began while the training was starting."""
        if self.loss is None:
            return False
        first, last = int(self.loss.steps[0]), int(self.loss.steps[-1])
        return self.episode.start - first <= EARLY * (last - first)

    def before(self, curve: Curve, points: int = JUST_BEFORE) -> NDArray[np.float64]:
        """The finite values just before the episode."""
        end = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        values = curve.values[max(0, end - points) : end]
        return values[np.isfinite(values)]

    def at(self, curve: Curve) -> NDArray[np.float64]:
        """The values from the episode's first step to its worst, and the one after."""
        low = int(np.searchsorted(curve.steps, self.episode.start, side="left"))
        high = int(np.searchsorted(curve.steps, max(self.episode.peak, self.episode.start), side="right"))
        return curve.values[low : high + 1]


def surroundings_of(episode: Episode, history: RunHistory, curves: RunCurves) -> Surroundings:
    """What is known around an episode."""

    def one(among: tuple[Curve, ...]) -> Curve | None:
        mine = [curve for curve in among if curve.attempt == episode.attempt]
        by_place = [curve for curve in mine if curve.place == episode.place]
        return next(iter((*by_place, *mine)), None)

    named = tuple(curve for curve in (*curves.losses, *curves.validations) if curve.name == episode.metric)
    rates = tuple(curve for curve in curves_of(history, "learning_rate") if curve.attempt == episode.attempt)
    return Surroundings(
        episode,
        history,
        one(named or curves.losses or curves.validations),
        one(tuple(norm for norm in curves.norms if norm.place in ("", episode.place))),
        rates,
        one(curves_of(history, "loss_scale")),
    )


def shown(value: float) -> str:
    """A number as sentences have it."""
    return f"{value:.3g}"
