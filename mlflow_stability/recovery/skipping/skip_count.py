"""Count skipped steps: when to report them, lower the loss scale, or roll back.

The first skip of a row is reported, then every hundredth; the search of a loss scaler for its first scale is normal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from mlflow_stability.kinds.reported.autopilot import SkipNews, SkippedStepFacts
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5_OR_CLIP, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

SkippedBy = Literal["guard", "scaler"]  # the guard, or the loss scaler of the script
KIND = "step_skipped"
REMEDIES = (
    Remedy(Action.INSPECT_FIRST_SKIPPED),
    LOWER_RATE_2_TO_5_OR_CLIP,
    Remedy(Action.TRAIN_IN_BF16_OR_CONSERVATIVE_SCALER),
)


RESET_STATISTICS = Remedy(Action.RESET_RUNNING_STATISTICS)  # where buffers could not be restored


@dataclass(frozen=True, slots=True)
class SkipRow:
    """What the last step means."""

    in_a_row: int = 0  # consecutive skipped steps up to this one
    events: tuple[Finding, ...] = ()
    cut_scale: bool = False  # the loss scale is too high: see `loss_scale.cut_loss_scale`
    calm_scaler: bool = False  # it was lowered recently and has grown back: see `loss_scale.calm_loss_scaler`


_TAKEN = SkipRow()


class SkipCount:
    def __init__(self, policy: RollbackPolicy) -> None:
        self._policy = policy
        self.total = 0
        self._row = 0
        self._last_skipped = -1  # the last step skipped: parallel trainings may each skip in it, and it counts once
        self._recent: deque[bool] = deque(maxlen=policy.skip_window)
        self._often_reported = False
        self._scale: float | None = None
        self._falling = False
        self._grown = False
        self._last_cut: int | None = None
        self._loss_reported = False

    def step(
        self,
        step: int,
        skipped: SkippedBy | None,
        loss_scale: float | None = None,
        *,
        time: float = 0.0,
        buffers_lost: bool = False,
    ) -> SkipRow:
        """Count a step; `skipped`: by whom; `buffers_lost`: its buffers could not be restored."""
        if loss_scale is not None:
            if self._scale is not None:
                self._grown = self._grown or loss_scale > self._scale
                self._falling = loss_scale < self._scale
            self._scale = loss_scale
        self._recent.append(skipped is not None)
        if skipped is None:
            self._row = 0
            if self._often_reported and 2 * self._share() <= self._policy.critical_skip_share:
                self._often_reported = False
            return _TAKEN
        if step == self._last_skipped and self._row:
            return SkipRow(self._row)
        self._row += 1
        self.total += 1
        self._last_skipped = step
        policy, row = self._policy, self._row
        searching = skipped == "scaler" and not self._grown and row <= policy.search_skips
        cut = (
            row % policy.cut_after_skips == 0
            and loss_scale is not None
            and not (searching and (self._falling or row == 1))
        )
        cut = cut and loss_scale is not None and loss_scale > policy.smallest_scale
        calm = cut and self._last_cut is not None and step - self._last_cut <= policy.skip_window
        if cut:
            self._last_cut = step
        news = self._say(skipped, loss_scale, cut=cut, searching=searching)
        if news is None:
            return SkipRow(row, (), cut, calm)
        severity, facts = news
        remedies: tuple[Remedy, ...] = REMEDIES
        if buffers_lost and not self._loss_reported:
            self._loss_reported = True
            facts, remedies = replace(facts, buffers_not_restored=True), (RESET_STATISTICS, *REMEDIES)
        event = Finding.at(facts, step, severity, kind=KIND, remedies=remedies, time=time)
        return SkipRow(row, (event,), cut, calm)

    def forget_row(self) -> None:
        self._row = 0
        self._recent.clear()
        self._often_reported = False

    def _share(self) -> float:
        return sum(self._recent) / len(self._recent)

    def _say(
        self, who: str, loss_scale: float | None, *, cut: bool, searching: bool
    ) -> tuple[Severity, SkippedStepFacts] | None:
        """Return severity and facts to report; None without news."""
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
        """Whether skipping has just become too frequent; True once until it is rare again."""
        if self._often_reported or len(self._recent) < self._policy.skip_window:
            return False
        self._often_reported = self._share() > self._policy.critical_skip_share
        return self._often_reported
