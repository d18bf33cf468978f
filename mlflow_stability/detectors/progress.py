"""Follow the losses of a recording, to see whether the training is doing badly.

A finding about the inside of a model is INFO while the loss falls. It becomes a warning once the loss has not fallen,
or has risen above its lowest level, while the trouble goes on.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any, ClassVar

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.loss_fall import LossFalls, start_level
from mlflow_stability.vocabulary.facts import FollowedFacts, LossTrouble
from mlflow_stability.vocabulary.result.finding import Finding, Severity, Span

START_LOSSES = 20  # number of first losses whose median is the start
MIN_LOSSES = 100  # number of losses before which it is not known whether they fall
WEIGHT = 0.05  # weight of the newest loss in the running mean
FALLEN = 0.9  # share of its start below which a loss has fallen
RISEN = 1.3  # ratio to the lowest running mean above which a loss has risen; noise of 30 % does not reach it
MIN_LOST_SHARE = 0.1  # minimum share of the progress that a rise must undo
MIN_LOST_SHARE_BELOW_ZERO = 0.5  # the same for a loss that has been below zero, of which no ratio says how far it rose
CLEAR_FALL = 1.5  # multiple of the mean change between losses by which the lowest mean is clearly below the start
CLEAR_RISE = 1.0  # the same for a rise above it, which decides where the noise is larger: 7σ of the running mean
LOWEST_WITHIN = 10  # number of last losses among which the lowest running mean is the present one


@dataclass(slots=True)
class LossProgress:
    first: list[float] = field(default_factory=list)
    count: int = 0
    mean: float = 0.0
    lowest: float = inf
    lowest_at: int = 0  # number of losses up to the lowest running mean
    last: float = 0.0
    change: float = 0.0  # running mean of the change from one loss to the next
    is_signed: bool = False  # whether a loss was negative: its noise is then no share of its level

    def take(self, loss: float) -> None:
        self.count += 1
        self.is_signed = self.is_signed or loss < 0
        if len(self.first) < START_LOSSES:
            self.first.append(loss)
            self.mean, self.last = median(self.first), loss
            return
        self.mean += WEIGHT * (loss - self.mean)
        self.change += WEIGHT * (abs(loss - self.last) - self.change)
        self.last = loss
        if self.mean < self.lowest:
            self.lowest, self.lowest_at = self.mean, self.count

    def trouble(self) -> LossTrouble | None:
        """Return what is wrong with the loss; None where nothing is, or it is too early to tell."""
        if self.lowest == inf:
            return None
        start, lost = median(self.first), self.mean - self.lowest
        if self.lowest <= 0:
            rose = lost > MIN_LOST_SHARE_BELOW_ZERO * (start - self.lowest) > 0
            return LossTrouble(self.mean, self.lowest, start) if rose else None
        keeps_progress = lost < MIN_LOST_SHARE * (start_level(self.first) - self.lowest)
        noise = self.change if self.is_signed else self.change * self.lowest / self.mean  # at the lowest mean
        if self.mean > RISEN * self.lowest and lost > CLEAR_RISE * noise and not keeps_progress:
            return LossTrouble(self.mean, self.lowest, start)
        fell = keeps_progress and self.lowest <= FALLEN * start  # within few steps, so that the start is low
        if fell or self.count < MIN_LOSSES or self.mean <= FALLEN * start:
            return None
        return LossTrouble(self.mean, None, start)

    def reaches_new_lows(self) -> bool:
        """Whether it is at its lowest level so far, clearly below its start, however little it has fallen."""
        is_lowest = self.lowest < inf and self.count - self.lowest_at < LOWEST_WITHIN
        return is_lowest and median(self.first) - self.lowest > CLEAR_FALL * self.change

    def is_falling(self) -> bool:
        """Whether nothing is wrong with it; of one that was below zero, whether it is near its lowest level."""
        if self.lowest == inf or self.trouble():
            return False
        return self.lowest > 0 or self.mean - self.lowest < MIN_LOST_SHARE * (median(self.first) - self.lowest)


@dataclass(slots=True)
class Losses:
    """The losses of a recording, followed once for all detectors that need them."""

    by_place: dict[str, LossProgress] = field(default_factory=dict)  # losses whose level measures progress
    falls: LossFalls = field(default_factory=LossFalls)  # all losses since the start or the last rollback
    signed: bool = False  # whether a loss has been negative or without a level: how far it has fallen is not known then
    step: int = -1  # the last step with a loss

    def take(self, place: str, step: int, value: float, has_level: bool) -> None:
        self.step, self.signed = step, self.signed or value < 0 or not has_level
        self.falls.take(place, value)
        if has_level:
            if place not in self.by_place:
                self.by_place[place] = LossProgress()
            self.by_place[place].take(value)

    def after_rollback(self) -> Losses:
        """Return the same losses, with their progress alone."""
        return Losses(self.by_place)

    def is_falling(self, place: str) -> bool:
        """Whether the level of this loss is known, and nothing is wrong with it."""
        loss = self.by_place.get(place)
        return loss is not None and (loss.is_falling() or self.falls.learnt())

    def reaches_new_lows(self, place: str) -> bool:
        loss = self.by_place.get(place)
        return loss is not None and loss.reaches_new_lows()

    def trouble(self) -> LossTrouble | None:
        """Return what is wrong with the first loss that is not well; None where almost nothing is left of any.

        Of a loss that is nearly always zero, a few hard examples raise the mean.
        """
        troubles = (trouble for loss in self.by_place.values() if (trouble := loss.trouble()))
        trouble = next(troubles, None)
        return None if trouble is None or self.falls.learnt() else trouble


@dataclass(slots=True)
class Progress:
    """Decides the severity of a detector's findings by the losses."""

    losses: Losses = field(default_factory=Losses)  # the losses of the recording; the panel has all states share them
    waiting: Finding | None = None  # the last finding, as long as it is INFO

    def judge(self, finding: Finding | None, point: Point, *, goes_on: bool) -> Finding | None:
        """Return a new finding at the severity that the losses give it, or the waiting one as a warning."""
        waiting = self.waiting = self.waiting if goes_on else None
        if finding is None and (waiting is None or point.quantity == "loss"):
            return None
        trouble = self.losses.trouble()
        if finding is not None:
            self.waiting = None if trouble else finding
            return finding if trouble else replace(finding, severity=Severity.INFO)
        if waiting is None or trouble is None or not isinstance(waiting.facts, FollowedFacts):
            return None
        self.waiting = None
        return replace(
            waiting,
            span=Span(point.step, point.step, point.step),
            where=replace(waiting.where, attempt=point.attempt),
            facts=replace(waiting.facts, found_first=waiting.step, loss_since=trouble),
            time=point.time,
        )


@dataclass(frozen=True, slots=True)
class JudgedByProgress(Detector):
    """A detector whose findings are INFO while the loss falls; its state has a `progress`."""

    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO, Severity.WARNING)

    @abstractmethod
    def look(self, state: Any, point: Point) -> Finding | None:
        """Look at the next point; return a finding with `FollowedFacts`, or None."""

    @abstractmethod
    def goes_on(self, state: Any) -> bool:
        """Whether the trouble of the last finding is not over."""

    def step(self, state: Any, point: Point) -> tuple[Any, Finding | None]:
        finding = self.look(state, point)
        if finding is None and state.progress.waiting is None:
            return state, None
        return state, state.progress.judge(finding, point, goes_on=self.goes_on(state))
