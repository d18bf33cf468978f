"""Data for decisions about rollbacks, and the decision."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from mlflow_stability.kinds.loss.divergence import DivergenceFacts, SizeFacts, SlowRiseFacts
from mlflow_stability.vocabulary.facts import LossRiseFacts
from mlflow_stability.vocabulary.result import Finding


class StopPlace(NamedTuple):
    rank: int
    condition: int


@dataclass(frozen=True, slots=True)
class GoodState:
    step: int
    loss: float
    initial: bool = False  # the state from before the first step, which has proved nothing
    around: tuple[float, ...] = ()  # losses around its step when it was trained, if known


@dataclass(frozen=True, slots=True)
class Situation:
    step: int
    events: tuple[Finding, ...] = ()
    loss: float = math.nan
    skips_in_a_row: int = 0
    broken_step_taken: bool = False  # a step with non-finite loss or gradients was taken
    weights_finite: bool = True
    good: tuple[GoodState, ...] = ()  # the states that can be restored
    place: str = ""  # part of the training that the loss belongs to, such as one half of a GAN
    recent: tuple[float, ...] = ()  # losses of the last steps, including this one
    earlier: tuple[float, ...] = ()  # losses of as many steps before those
    set_aside: int | None = None  # step of the state from before the last rollback, if it is still there
    has_level: bool = True  # whether the level of the loss says how good the weights are


ABSURD_RISE = 1000.0  # ratio of the loss to its level that always triggers a rollback


@dataclass(frozen=True, slots=True)
class Trouble:
    onset: int  # earliest step of it: the restored state must be older
    reason: str
    urgent: bool = False  # it does not wait: no state can settle with it
    event: Finding | None = None
    skipped: bool = False  # all its steps were skipped, so the weights are those from before it
    may_repeat: bool = False  # the same state may be restored once more
    one_step: bool = False  # one broken step was taken: its onset is exact, and it says nothing about the learning rate
    did_not_hold: bool = False  # the restored state gives high losses again
    nonfinite: bool = False  # weights are not finite

    @property
    def first_seen(self) -> int:
        """Return the first high loss, where the finding names it."""
        facts = self.event.facts if self.event is not None else None
        first = facts.first_high if isinstance(facts, DivergenceFacts | SizeFacts) else None
        return self.onset if first is None else first

    @property
    def of_level(self) -> bool:
        """Whether it is only a higher loss."""
        return self.event is not None

    @property
    def is_absurd(self) -> bool:
        """Whether the loss matters whatever it measures."""
        return self.event is not None and rise_of(self.event) >= ABSURD_RISE

    @property
    def is_slow(self) -> bool:
        """Whether the loss rose over many steps, so that states shortly before the finding may be no better."""
        return self.event is not None and isinstance(self.event.facts, SlowRiseFacts)


def rise_of(event: Finding) -> float:
    """Return the loss as a multiple of its level; NaN if unknown."""
    loss, level = levels_of(event)
    return abs(loss / level) if level else math.nan


def levels_of(event: Finding | None) -> tuple[float, float]:
    """Return loss and level of a finding, or its size in the first steps; NaN if unknown."""
    facts = event.facts if event is not None else None
    if isinstance(facts, LossRiseFacts):
        return facts.value, facts.baseline
    return (facts.loss, facts.early) if isinstance(facts, SizeFacts) else (math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class PastRollback:
    at: int  # the step after which it happened
    to: int  # the step of the restored state
    level: int  # how often the same trouble was answered before
    again: bool = False  # the same state as before: the cause may have lasted longer than the first time
    skipped: bool = False  # all steps of the trouble were skipped, so the weights were not to blame as far as known
    onset: int = 0  # earliest step of the trouble
    first_seen: int = 0  # first step at which it was detected
    of_level: bool = False  # triggered by a higher loss, not by broken steps or weights
    absurd: bool = False  # the loss was 1,000 times its level: answered whatever the loss means
    had_no_effect: bool = False  # the restored weights gave no lower loss: it does not count
    undone: bool = False  # the weights from before it were restored


@dataclass(frozen=True, slots=True)
class RateJump:
    step: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SuspectedRise:
    """A rise of the loss after a learning rate jump, not critical yet."""

    jump: RateJump
    since: int  # step of the finding
    level: float
    loss: float
    place: str = ""


@dataclass(frozen=True, slots=True)
class RollbackHistory:
    """Rollbacks so far, and what is remembered for the next decision."""

    rollbacks: tuple[PastRollback, ...] = ()
    unanswered: int = 0  # consecutive troubles without a state to restore
    waiting: Trouble | None = None  # until the restored state has settled, or while the loss falls back by itself
    limit: float | None = None  # a higher mean loss soon after a rollback shows that the training diverged again
    losses: tuple[float, ...] = ()  # the last losses since the rollback
    first: tuple[float, ...] = ()  # the first losses since the rollback
    on_trial: bool = False  # whether the losses after the rollback are still to be compared with those before it
    trained_losses: tuple[float, ...] = ()  # when the restored state was trained; empty where not comparable
    losses_before: tuple[float, ...] = ()  # losses right before the rollback
    place: str = ""  # part of the training that these losses belong to
    share: float = 1.0  # lasting learning rate factor: below 1 after a rollback to the initial weights
    gave_up: bool = False  # no more rollbacks, except of non-finite weights; broken steps are still skipped
    ended: bool = False  # nothing is left to lose
    ignores_level: bool = False  # a higher loss triggers no rollback any more, unless it is 1,000 times its level
    onsets: tuple[int, ...] = ()  # steps at which the last rises of the loss were detected
    period: int | None = None  # distance of rises that rollbacks did not prevent
    jump: RateJump | None = None
    suspected: SuspectedRise | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a step; rank 0 decides, and all ranks do it after the same step."""

    action: Literal["nothing", "rollback", "give_up", "data_changed", "undo"] = "nothing"
    reason: str = ""  # a sentence, known on the rank that decides
    onset: int = 0
    target: int = -1
    """Step of the state to restore. When giving up, reverting, or after changed data: of the replaced weights to
    restore, if any."""
    easing_factor: float = 1.0
    easing_steps: int = 0
    lasting_share: float = 1.0  # lasting learning rate factor
    final: bool = False  # when giving up: no more rollbacks; False: only this trouble is not answered
    nothing_left: bool = False  # when giving up: nothing is left to lose, so that the training is ended by default
    is_no_better: bool = False  # when giving up: the loss of the state, which can be negative, is no lower
    undoes: int = 0  # steps regained by reverting a rollback
    loss: float = math.nan  # after changed data: the first loss of the restored weights
    level: float = math.nan  # after changed data: their loss before
    ignores_level: bool = False  # a higher loss triggers no rollback from now on
    finding: Finding | None = None  # the finding that a rollback answers
    is_counted: bool = False  # whether it ends the history; not one that the script asked for, or that reverts one

    healthy: bool = False  # states that await healthy steps are one step further
    trouble: bool = False  # drop the states that await healthy steps
    snapshot: bool = False
    checkpoint: bool = False
    ending: Exception | None = None  # the exception to end the training with
    stop: StopPlace | None = None  # the condition that is met before this step: all ranks skip it and end
    reset: bool = False  # reset the moments of the optimizers, and warm up
    cut: bool = False  # reduce the learning rate for the rest of the training
    ahead: bool = False  # a divergence may follow: act as `act_ahead` says
    release: bool = False  # end the reduction of the learning rate: the weights were not to blame

    @property
    def rolls_back(self) -> bool:
        return self.action == "rollback"

    def joined(self, later: Decision) -> Decision:
        """Combine two decisions, where a second step was read before the first decision was carried out."""
        return replace(
            self if self.rolls_back else later,
            healthy=later.healthy and not self.trouble,
            trouble=self.trouble or later.trouble,
            snapshot=False,
            checkpoint=False,
            stop=None,
            ending=self.ending or later.ending,
            reset=self.reset or later.reset,
            cut=self.cut or later.cut,
            ahead=self.ahead or later.ahead,
            release=self.release or later.release,
        )


NOTHING = Decision()
HEALTHY = Decision(healthy=True)  # the usual decision; compared by identity
