"""Says when the loss has left its level and does not come back.

Says when the loss is twice the mean of its last 100 values, three times in a row: the rule in general use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.engine.adversarial import RISE
from mlflow_stability.detectors.engine.classic_window import ClassicWindow
from mlflow_stability.detectors.engine.debounce import EpisodeFilter
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.finding_type import Moves
from mlflow_stability.detectors.engine.learning_rate_restart import RateRestart
from mlflow_stability.detectors.engine.loss_fall import Beginning
from mlflow_stability.detectors.engine.slow_rise import SlowRise
from mlflow_stability.vocabulary.result.event import Event, Severity
from mlflow_stability.vocabulary.text.phrases import risen as rise_words


@dataclass(slots=True)
class Course:
    """What has been seen so far."""

    gate: EpisodeFilter = field(default_factory=EpisodeFilter)
    high: int = 0
    """The last steps as bits, the newest lowest: 1 for a loss that stood high."""
    begun: Beginning = field(default_factory=Beginning)
    slow: SlowRise = field(default_factory=SlowRise)
    restart: RateRestart = field(default_factory=RateRestart)
    risen_from: float | None = None
    """The level, as a logarithm, that the loss was found to have risen from slowly and has not come back to."""


@dataclass(frozen=True, slots=True)
class Divergence(Detector):
    """The loss left its level upwards and stayed away.

    What it sees: 12 of the last 16 losses at least 4 widths of the noise and 10 % above their level. Also a slow rise:
    the mean of 32 steps lies at least 4 % and 7 of its own errors above the lowest of the 512 steps before, and rises
    on; noise that hangs together, and a long run, raise the 7. A slow rise is a warning, from 50 % on critical. Below a
    hundredth of where the loss began nothing is a divergence. One finding until the loss has been back for 64 steps, or
    its higher level has become the usual one.

    Why it matters: a diverging run seldom comes back by itself, and every further step is lost.

    What to try: go back to a state before it; lower the learning rate 2-5 times; warm up longer; clip the gradients.

    When it is wrong: harder data from some step on (a curriculum, a new mixture), a term of the loss that is switched
    on. The 200 steps after a restart of the learning rate are left out. Losses that can be negative are judged by
    leaps only, and at twice the width. Where several trainings take turns, as the halves of a GAN do, one's loss rises
    as the other learns: there only losses 10 times above their level count.

    Reference: OPT-175B (arXiv:2205.01068, 2.5); Page, Continuous inspection schemes, Biometrika 41 (1954)
    """

    threshold: float = 4.0
    """The z at which a single loss stands high."""
    threshold_of_differences: float = 8.0
    """The same where the loss can be negative."""
    high_steps: int = 12
    """How many of the last `of_steps` losses must stand high."""
    of_steps: int = 16
    """Among how many losses they are counted."""
    smallest_rise: float = 1.10
    """The least value of a high loss, as a multiple of the level."""
    smallest_rise_of_players: float = RISE
    """The same where several trainings take turns."""
    slow_threshold: float = 7.0
    """The least slow rise, in errors of a mean of 32 steps."""
    slow_per_longer_run: float = 0.4
    """By how much that is raised for each doubling of the run, from 500 steps on: a long run has more chances."""
    slow_per_correlation: float = 4.0
    """By how much it is raised for each doubling of the mean's error by noise that hangs together, from 1.3 on."""
    slow_smallest_rise: float = 1.04
    """The least slow rise as a multiple of the level."""
    slow_critical_rise: float = 1.5
    """From which multiple of the level on a slow rise is critical."""
    calm_steps: int = 64
    """After how many steps without a high loss the trouble is over."""

    kind = "divergence"
    noun = "a divergence"
    plural = "divergences"
    order = 40
    quantities = ("loss", "learning_rate")
    compared = ("loss",)
    severities = (Severity.WARNING, Severity.CRITICAL)
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "threshold_of_differences": "times",
        "smallest_rise": "power",
        "slow_threshold": "times",
        "slow_smallest_rise": "power",
    }
    remedies = (
        "Go back to a state from before it.",
        "Lower the learning rate 2-5 times.",
        "Warm the learning rate up longer.",
        "Clip gradients at 1.0.",
    )
    state_type = Course

    def step(self, state: Course, point: Point) -> tuple[Course, Event | None]:
        """Look at the next loss or learning rate."""
        return state, self._look(state, point)

    def _look(self, state: Course, point: Point) -> Event | None:
        if not point.finite:
            return None
        if point.quantity != "loss":
            state.restart.see(point.value, point.step)
            return None
        state.begun.take(point.value)
        if state.restart.excuses(point.step):
            state.high, state.slow, state.risen_from = 0, SlowRise(judged=state.slow.judged), None
            return None
        logarithmic = point.logarithmic
        if logarithmic:
            smallest = self.smallest_rise_of_players if point.players else self.smallest_rise
            high = point.z >= self.threshold and point.value >= point.center * smallest
        else:
            high = point.z >= self.threshold_of_differences
        high = high and state.begun.matters(point.value, point.center)
        state.high = ((state.high << 1) | bool(high)) & ((1 << self.of_steps) - 1)
        event = None
        if high and state.high.bit_count() >= self.high_steps:
            event = self._leap(state, point)
        elif not high and state.gate.said and state.risen_from is None:
            state.gate.quiet(self.calm_steps)
        if not logarithmic or point.players:
            if state.slow.means:
                state.slow, state.risen_from = SlowRise(), None
        elif point.scale and state.slow.take(math.log(min(point.value, 1e150)), point.z, point.scale):
            slow = self._creep(state, point)
            event = event or slow
        return event

    def _leap(self, state: Course, point: Point) -> Event | None:
        if not state.gate.speaks(Severity.CRITICAL):
            return None
        many = state.high.bit_count()
        return finding(
            self,
            point,
            Severity.CRITICAL,
            f"loss stood high in {many} of the last {self.of_steps} steps: {point.value:.4g} at step {point.step}, "
            f"from a level of {point.center:.4g}.",
            {"loss": point.value, "level": point.center, "z": point.z, "high_steps": float(many)},
        )

    def _creep(self, state: Course, point: Point) -> Event | None:
        """Judge the newest mean, every 8 steps."""
        mean = state.slow.means[-1]
        if not state.begun.matters(math.exp(mean)):
            return None
        if state.risen_from is not None:
            risen, little = mean - state.risen_from, math.log(self.slow_smallest_rise) / 2
            if risen < little or state.slow.above_lowest() < little:  # it has come back, or stays where it is
                state.risen_from = None
                return None
            return self._risen(state, point, risen, {}) if risen >= math.log(self.slow_critical_rise) else None
        risen = state.slow.rise()
        if risen < math.log(self.slow_smallest_rise):
            return None
        error, larger = state.slow.error(point.scale)
        limit = self.slow_threshold + self.slow_per_correlation * max(0.0, math.log2(larger) - 0.4)
        limit += self.slow_per_longer_run * max(0.0, math.log2(state.slow.judged / 64))
        if risen < limit * error:
            return None
        state.risen_from = mean - risen
        return self._risen(state, point, risen, {"errors": risen / error, "limit": limit})

    def _risen(self, state: Course, point: Point, risen: float, evidence: dict[str, float]) -> Event | None:
        severity = Severity.CRITICAL if risen >= math.log(self.slow_critical_rise) else Severity.WARNING
        if not state.gate.speaks(severity):
            return None
        now, then = math.exp(state.slow.means[-1]), math.exp(state.slow.means[-1] - risen)
        risen = min(risen, 700.0)  # beyond, the share is no number any more
        return finding(
            self,
            point,
            severity,
            f"loss has been rising slowly: {now:.4g} over the last 32 steps to step {point.step}, "
            f"{rise_words(math.expm1(risen), f'{then:.4g}')}.",
            {"loss": now, "level": then, "rise": math.expm1(risen), **evidence},
        )


@dataclass(frozen=True, slots=True)
class DivergenceClassic(Detector):
    """The loss is twice the mean of its last 100 values, three times in a row.

    What it sees: 3 losses in a row above 2.0 times the mean of the 100 before each, from the 21st value on. A run of
    them is one finding.

    Why it matters: a diverging run seldom comes back by itself, and every further step is lost.

    What to try: go back to a state before it; lower the learning rate 2-5 times; warm up longer; clip the gradients.

    When it is wrong: it says nothing to losses at or below zero, and nothing of a divergence that is slow or that ends
    below twice the level, as most do.

    Reference: llm-foundry, KillLossSpike
    """

    divergence_threshold: float = 2.0
    """The multiple of the mean above which a loss is too high."""
    consecutive_steps: int = 3
    """How many in a row make a divergence."""
    window: int = 100
    """How many values the mean is of."""
    least_values: int = 20
    """From how many values on anything is judged."""

    kind = "divergence"
    order = 400
    on_request = True
    rule = "classic"
    quantities = ("loss",)
    severities = (Severity.CRITICAL,)
    remedies = (
        "Go back to a state from before it.",
        "Lower the learning rate 2-5 times.",
        "Warm the learning rate up longer.",
        "Clip gradients at 1.0.",
    )
    state_type = ClassicWindow

    def step(self, state: ClassicWindow, point: Point) -> tuple[ClassicWindow, Event | None]:
        """Look at the next loss."""
        if not point.finite:
            return state, None
        event = None
        if len(state.values) >= self.least_values:
            mean = state.mean()
            high = mean > 0 and point.value > self.divergence_threshold * mean
            state.run = state.run + 1 if high else 0
            if high and state.run == self.consecutive_steps:
                event = finding(
                    self,
                    point,
                    Severity.CRITICAL,
                    f"loss is {point.value:.4g} at step {point.step} and has been above {self.divergence_threshold:g} "
                    f"times the mean of the {len(state.values)} before ({mean:.4g}) for {state.run} steps.",
                    {"loss": point.value, "mean": mean, "steps": float(state.run)},
                )
        state.take(point.value, self.window)
        return state, event
