"""Counts skipped steps, so that a training which stands still never passes in silence.

In: of every step, whether it was skipped, by whom, and the loss scale. Out: the row of skips so far, what to say of
it, and whether to cut the loss scale, to calm its scaler, or to go back. Guarantees: the first skip of a row is told,
and after it every hundredth; what a loss scaler does while it looks for its first scale is left alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Literal

from mlflow_stability.kinds.reported.autopilot import SkipNews, SkippedStepFacts
from mlflow_stability.recovery.extras import GROWTH_FACTOR, GROWTH_INTERVAL
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5_OR_CLIP, Action, Finding, Remedy, Severity

SkippedBy = Literal["guard", "scaler"]
"""Who skipped a step: our guard, or the loss scaler of the script."""
KIND = "step_skipped"
REMEDIES = (
    Remedy(Action.INSPECT_FIRST_SKIPPED),
    LOWER_RATE_2_TO_5_OR_CLIP,
    Remedy(Action.TRAIN_IN_BF16_OR_CONSERVATIVE_SCALER),
)


RESET_STATISTICS = Remedy(Action.RESET_RUNNING_STATISTICS)
"""Where buffers could not be put back."""


@dataclass(frozen=True, slots=True)
class SkipRow:
    """What the last step means."""

    in_a_row: int = 0
    """How many steps up to this one were skipped without one in between that was taken."""
    events: tuple[Finding, ...] = ()
    cut_scale: bool = False
    """The loss scale is too high and does not come down by itself: see `cut_loss_scale`."""
    calm_scaler: bool = False
    """It was cut not long ago, and has grown back: see `calm_loss_scaler`."""


_TAKEN = SkipRow()


class SkipCount:
    """The skips of one training."""

    def __init__(self, policy: RollbackPolicy) -> None:
        self._policy = policy
        self.total = 0
        """How many steps were skipped so far."""
        self._row = 0
        self._last_skipped = -1
        """The step that was skipped last: of trainings side by side each may skip in it, and it counts once."""
        self._recent: deque[bool] = deque(maxlen=policy.skip_window)
        self._often_said = False
        self._scale: float | None = None
        self._falling = False
        self._grown = False
        self._last_cut: int | None = None
        self._lost_said = False

    def step(
        self,
        step: int,
        skipped: SkippedBy | None,
        loss_scale: float | None = None,
        *,
        attempt: int = 0,
        time: float = 0.0,
        buffers_lost: bool = False,
    ) -> SkipRow:
        """Take note of a step: who skipped it, if it was skipped; whether its buffers could not be put back."""
        if loss_scale is not None:
            self._follow(loss_scale)
        self._recent.append(skipped is not None)
        if skipped is None:
            self._row = 0
            if self._often_said and 2 * self._share() <= self._policy.critical_skip_share:
                self._often_said = False
            return _TAKEN
        if step == self._last_skipped and self._row:
            return SkipRow(self._row)
        self._row += 1
        self.total += 1
        self._last_skipped = step
        policy, row = self._policy, self._row
        searching = skipped == "scaler" and not self._grown and row <= policy.search_skips
        cut = row % policy.cut_after_skips == 0 and loss_scale is not None and not (searching and self._is_falling())
        cut = cut and loss_scale is not None and loss_scale > policy.smallest_scale
        calm = cut and self._last_cut is not None and step - self._last_cut <= policy.skip_window
        if cut:
            self._last_cut = step
        said = self._say(skipped, loss_scale, cut=cut, searching=searching)
        if said is None:
            return SkipRow(row, (), cut, calm)
        severity, facts = said
        remedies: tuple[Remedy, ...] = REMEDIES
        if buffers_lost and not self._lost_said:
            self._lost_said = True
            facts, remedies = replace(facts, buffers_not_restored=True), (RESET_STATISTICS, *REMEDIES)
        event = Finding.at(facts, step, severity, kind=KIND, remedies=remedies, attempt=attempt, time=time)
        return SkipRow(row, (event,), cut, calm)

    def forget_row(self) -> None:
        """The training was rolled back: what is skipped now is a new row."""
        self._row = 0
        self._recent.clear()
        self._often_said = False

    def _follow(self, loss_scale: float) -> None:
        if self._scale is not None:
            self._grown = self._grown or loss_scale > self._scale
            self._falling = loss_scale < self._scale
        self._scale = loss_scale

    def _is_falling(self) -> bool:
        return self._falling or self._row == 1

    def _share(self) -> float:
        return sum(self._recent) / len(self._recent)

    def _say(
        self, who: str, loss_scale: float | None, *, cut: bool, searching: bool
    ) -> tuple[Severity, SkippedStepFacts] | None:
        """Severity and facts of what there is to say; None when there is nothing new."""
        policy, row = self._policy, self._row

        def facts(news: SkipNews) -> SkippedStepFacts:
            return SkippedStepFacts(news, row, self.total, who == "scaler", loss_scale)

        if row % policy.tell_every_skips == 0:
            return Severity.CRITICAL, facts(SkipNews.NO_PROGRESS)
        if row == policy.rollback_after_skips:
            return Severity.CRITICAL, facts(SkipNews.NO_HELP)
        if not searching and self._often():
            often = replace(facts(SkipNews.OFTEN), share=self._share(), of_steps=len(self._recent))
            return Severity.CRITICAL, often
        if cut and loss_scale is not None:
            new = max(loss_scale * policy.cut_factor, policy.smallest_scale)
            return Severity.WARNING, replace(facts(SkipNews.SCALE_LOWERED), new_loss_scale=new)
        if row == 1:
            return Severity.INFO if searching else Severity.WARNING, facts(SkipNews.FIRST)
        return None

    def _often(self) -> bool:
        """Whether skipping has just become too frequent; told once until it is seldom again."""
        if self._often_said or len(self._recent) < self._policy.skip_window:
            return False
        self._often_said = self._share() > self._policy.critical_skip_share
        return self._often_said


def cut_loss_scale(scaler: Any, factor: float, smallest: float) -> None:
    """Lower the scale of a loss scaler on its device, without waiting; never raise it.

    Only between the end of a step and the next `scale`: in between, gradients carry the old one.
    """
    scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
    if scale is None:
        return
    scale.copy_((scale * factor).clamp(min=smallest).minimum(scale))
    if tracker is not None:
        tracker.zero_()


def cap_loss_scale(scaler: Any, largest: float) -> None:
    """Keep the scale of a loss scaler at or below a limit, on its device, without waiting.

    Where its next growth would exceed the limit, the steps since the last growth are counted anew. Only between the end
    of a step and the next `scale`.
    """
    scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
    if scale is None or tracker is None:
        return
    growth = scaler.get_growth_factor()
    if scaler.get_growth_interval() == 1:  # it grows at each step, right after this
        scale.clamp_(max=largest / growth)
        return
    scale.clamp_(max=largest)
    tracker.mul_((scale * growth <= largest).to(tracker.dtype))


def calm_loss_scaler(scaler: Any) -> None:
    """Let a loss scaler grow as seldom and as little as a conservative one, and fall at least by half."""
    scaler.set_growth_interval(max(scaler.get_growth_interval(), GROWTH_INTERVAL))
    scaler.set_growth_factor(min(scaler.get_growth_factor(), GROWTH_FACTOR))
    scaler.set_backoff_factor(min(scaler.get_backoff_factor(), 0.5))
