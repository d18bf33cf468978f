"""Says when the gradient norm leaps far above its own level.

Says when the gradient norm is above 100, or three deviations above its last 100 values: the rule in general use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.engine.adversarial import RISE
from mlflow_stability.detectors.engine.classic_window import ClassicWindow
from mlflow_stability.detectors.engine.debounce import EpisodeFilter
from mlflow_stability.detectors.engine.detector import WHOLE, Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves
from mlflow_stability.detectors.engine.loss_fall import Beginning
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class Norms:
    """What has been seen so far."""

    gate: EpisodeFilter = field(default_factory=EpisodeFilter)
    begun: Beginning = field(default_factory=Beginning)
    high: int = 0
    """For how many steps in a row the norm has stood high."""


@dataclass(frozen=True, slots=True)
class GradientExplosion(Detector):
    """The gradient norm leapt far above its own level.

    What it sees: a norm, before clipping where that can be seen, at least 5.5 widths of its own noise and 8 times above
    its level; or three in a row of at least 4 widths and 5 times, unless norms of 0 are usual. A heavy tail raises both
    widths. The level is the run's own: a model whose healthy norm is 300 is not ill; and below a hundredth of where the
    norm began nothing is an explosion. Critical from 1000 on, if that is 100 times its level. Where several trainings
    take turns, as the halves of a GAN do, a norm rises as the other one learns: there 10 times are asked for. One
    finding until the norm has been calm for 8 steps.

    Why it matters: one such step can throw the weights far from where they were; the loss often follows a few steps
    later, and with fp16 infinity does.

    What to try: clip the gradients at 1.0; lower the learning rate 2-5 times; look at the loss and the batch of this
    step.

    When it is wrong: recurrent networks and reinforcement learning, where single large norms belong to it and clipping
    takes care of them. A row in none of 117 healthy trainings of 39 kinds.

    Reference: Pascanu et al. (arXiv:1211.5063); GLM-130B (arXiv:2210.02414, 3)
    """

    threshold: float = 5.5
    """The least z of the norm's logarithm."""
    share_of_tail: float = 0.7
    """The least z as a share of what the norm's own noise reaches once in 100,000 steps."""
    smallest_rise: float = 8.0
    """The least norm as a multiple of its level."""
    row: int = 3
    """So many norms in a row are enough if each of them has ..."""
    row_threshold: float = 4.0
    """... this z, ..."""
    row_share_of_tail: float = 0.33
    """... this share of what the norm's own noise reaches once in 100,000 steps, ..."""
    row_smallest_rise: float = 5.0
    """... and is this multiple of its level."""
    smallest_rise_of_players: float = RISE
    """The least multiple of the level, in a row or alone, where several trainings take turns."""
    critical_norm: float = 1000.0
    """From which norm on it is critical, ..."""
    critical_rise: float = 100.0
    """... if it is at least this multiple of the level."""
    calm_below: float = 4.0
    """Below this z a step counts as calm."""
    calm_steps: int = 8
    """After how many calm steps in a row the trouble is over."""

    kind = "gradient_explosion"
    noun = "a gradient explosion"
    plural = "gradient explosions"
    order = 60
    quantities = ("grad_norm",)
    compared = ("grad_norm",)
    places = WHOLE
    severities = (Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "share_of_tail": "times",
        "smallest_rise": "power",
        "row_threshold": "times",
        "row_share_of_tail": "times",
        "row_smallest_rise": "power",
    }
    remedies = (
        "Clip gradients at 1.0.",
        "Lower the learning rate 2-5 times.",
        "Look at the loss and the batch of this step.",
    )
    state_type = Norms

    def step(self, state: Norms, point: Point) -> tuple[Norms, Event | None]:
        """Look at the next norm."""
        z = point.z
        if z < self.calm_below:
            state.high = 0
            if point.finite:
                state.begun.take(point.value)
            if state.gate.said and point.finite:
                state.gate.quiet(self.calm_steps)
            return state, None
        row_rise, rise = self.row_smallest_rise, self.smallest_rise
        if point.players:
            row_rise = rise = self.smallest_rise_of_players
        limit = max(self.row_threshold, self.row_share_of_tail * point.tail)
        high = point.logarithmic and z >= limit and point.value >= point.center * row_rise
        state.high = state.high + 1 if high else 0
        if state.high < self.row:
            limit = max(self.threshold, self.share_of_tail * point.tail)
            if z < limit or point.value < point.center * rise:
                return state, None
        if not state.begun.matters(point.value, point.center):
            return state, None
        huge = point.value >= self.critical_norm and point.value >= point.center * self.critical_rise
        severity = Severity.CRITICAL if huge else Severity.WARNING
        if not state.gate.speaks(severity):
            return state, None
        row = f" in each of {state.high} steps in a row" if state.high >= self.row else ""
        return state, finding(
            self,
            point,
            severity,
            f"grad_norm is {point.value:.4g} at step {point.step}, {_times(point)} its level of {point.center:.4g}: "
            f"{z:.1f} widths of its noise; the limit is {limit:.1f}{row}.",
            {
                "grad_norm": point.value,
                "level": point.center,
                "z": z,
                "limit": limit,
            },
        )


def _times(point: Point) -> str:
    return f"{point.value / point.center:,.0f} times" if point.center > 0 else "above"


@dataclass(frozen=True, slots=True)
class GradientExplosionClassic(Detector):
    """The gradient norm is above 100, or three deviations above its last 100 values.

    What it sees: a norm above 100, or above the mean plus 3 standard deviations of the 100 before it, from the 21st
    value on. Norms that are too high in a row are one finding.

    Why it matters: one such step can throw the weights far from where they were.

    What to try: clip the gradients at 1.0; lower the learning rate 2-5 times; look at the loss of this step.

    When it is wrong: often: norms are skewed, so that three deviations are reached every hundred steps, and there are
    healthy models whose norm is always above 100. The rule without `:classic` was made for that.

    Reference: Pascanu et al. (arXiv:1211.5063)
    """

    largest: float = 100.0
    """Above this norm it has exploded, whatever came before."""
    deviations: float = 3.0
    """How many standard deviations above the mean are too high."""
    window: int = 100
    """How many values the mean is of."""
    least_values: int = 20
    """From how many values on the mean is asked."""

    kind = "gradient_explosion"
    order = 410
    on_request = True
    rule = "classic"
    quantities = ("grad_norm",)
    places = WHOLE
    remedies = (
        "Clip gradients at 1.0.",
        "Lower the learning rate 2-5 times.",
        "Look at the loss and the batch of this step.",
    )
    state_type = ClassicWindow

    def step(self, state: ClassicWindow, point: Point) -> tuple[ClassicWindow, Event | None]:
        """Look at the next norm."""
        if not point.finite:
            return state, None
        limit = self.largest
        if len(state.values) >= self.least_values:
            mean = state.mean()
            by_deviation = mean + self.deviations * state.deviation(mean)
            limit = limit if math.isnan(by_deviation) else min(limit, by_deviation)
        high = point.value > limit
        event = None
        if high and not state.run:
            event = finding(
                self,
                point,
                Severity.WARNING,
                f"grad_norm is {point.value:.4g} at step {point.step}; the limit is {limit:.4g}.",
                {"grad_norm": point.value, "limit": limit},
            )
        state.run = state.run + 1 if high else 0
        state.take(point.value, self.window)
        return state, event
