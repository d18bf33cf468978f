"""The data that decisions about rollbacks are made from, and the decision.

Frozen dataclasses; `rollback_decisions.decide` reads and returns them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from mlflow_stability.vocabulary.result import Finding


class StopPlace(NamedTuple):
    """Which of the conditions to stop on is met, and on which rank."""

    rank: int
    condition: int


@dataclass(frozen=True, slots=True)
class GoodState:
    """A state that can be restored."""

    step: int
    loss: float
    initial: bool = False
    """It is from before the first step, and has proved nothing."""
    around: tuple[float, ...] = ()
    """The losses of the steps around it when it was trained, as far as they are known."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known at the end of a step."""

    step: int
    events: tuple[Finding, ...] = ()
    loss: float = math.nan
    skips_in_a_row: int = 0
    broken_step_taken: bool = False
    """A step with non-finite gradients or loss went into the weights."""
    weights_finite: bool = True
    good: tuple[GoodState, ...] = ()
    """The states that can be restored."""
    place: str = ""
    """Of which part of the training the loss is, such as one half of a GAN."""
    recent: tuple[float, ...] = ()
    """The losses of the last steps, this one among them."""
    set_aside: int | None = None
    """The step of the state from before the last rollback, where it is still there."""
    has_level: bool = True
    """Whether the level of the loss says how good the weights are."""


@dataclass(frozen=True, slots=True)
class PastRollback:
    """One rollback of this training."""

    at: int
    """The step after which."""
    to: int
    """The step of the state."""
    level: int
    """How many times the same trouble had been answered before."""
    again: bool = False
    """To the same state once more: the cause may have lasted longer than the first time."""
    skipped: bool = False
    """All steps of the trouble were skipped: the weights that were left were not to blame, as far as was known."""
    onset: int = 0
    """Where the trouble began at the earliest."""
    first_seen: int = 0
    """The first step at which it was seen."""
    of_level: bool = False
    """It was made because the loss had risen; else for steps or weights that are broken."""
    absurd: bool = False
    """The loss had risen to 1,000 times its level: answered whatever the loss means."""
    cleared: bool = False
    """The weights were not to blame: the restored ones gave no lower loss. It counts as no rollback."""
    undone: bool = False
    """The weights that were left are trained on."""


@dataclass(frozen=True, slots=True)
class RateJump:
    """A jump of the learning rate that a finding reported."""

    step: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SuspectedRise:
    """A rise of the loss after a jump of the learning rate, too small to be critical: does it last?"""

    jump: RateJump
    since: int
    """The step of the finding."""
    level: float
    loss: float
    place: str = ""


@dataclass(frozen=True, slots=True)
class RollbackHistory:
    """What was done so far."""

    rollbacks: tuple[PastRollback, ...] = ()
    unanswered: int = 0
    """How many times in a row there was no state to restore."""
    waiting: int | None = None
    """The onset of a finding that waits until the restored state has settled."""
    why_waiting: str = ""
    limit: float | None = None
    """A mean loss above this, soon after a rollback, shows that the training diverged again."""
    losses: tuple[float, ...] = ()
    """The last losses since the rollback, ..."""
    first: tuple[float, ...] = ()
    """... and the first ones."""
    on_trial: bool = False
    """Whether the first losses after the rollback were not compared yet with those from before it."""
    given: tuple[float, ...] = ()
    """The losses of the restored state when it was trained; empty where they do not say what it should give."""
    left: tuple[float, ...] = ()
    """The losses right before the rollback."""
    place: str = ""
    """Of which part of the training all these losses are."""
    share: float = 1.0
    """Of the learning rate, for the rest of the training: below 1 after a rollback to the initial weights."""
    gave_up: bool = False
    """Whether there are no more rollbacks, except of weights that are not finite; broken steps are still skipped."""
    ended: bool = False
    """Whether it was said that nothing is left to lose."""
    ignores_level: bool = False
    """Whether a higher loss is no reason for a rollback any more, unless it is 1,000 times its level."""
    onsets: tuple[int, ...] = ()
    """The steps at which rises of the loss were first seen, the last ones."""
    period: int | None = None
    """The distance of rises that rollbacks did not prevent."""
    jump: RateJump | None = None
    """The last jump of the learning rate."""
    suspected: SuspectedRise | None = None
    """A rise that is answered if it lasts."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a step; of several processes the first one decides, and all do it after the same step."""

    action: Literal["nothing", "rollback", "give_up", "data_changed", "undo"] = "nothing"
    reason: str = ""
    """A sentence for the event, known in the process that decides."""
    onset: int = 0
    """The step at which the trouble began."""
    target: int = -1
    """The step of the state to restore; of giving up, of changed data and of undoing: that of weights that were
    replaced and are wanted back, if any."""
    easing_factor: float = 1.0
    easing_steps: int = 0
    lasting_share: float = 1.0
    """The share of the learning rate that stays for the rest of the training."""
    final: bool = False
    """Of giving up: whether there are no more rollbacks; else only this trouble is not answered."""
    nothing_left: bool = False
    """Of giving up: whether the training has nothing left to lose, so that it is ended by default."""
    is_no_better: bool = False
    """Of giving up: whether the loss of the state, which can be negative, is no lower than the present one."""
    undoes: int = 0
    """How many steps are won back, because an earlier rollback is undone."""
    loss: float = math.nan
    """Of changed data: the first loss that the restored weights gave on it, ..."""
    level: float = math.nan
    """... and what they gave before."""
    ignores_level: bool = False
    """Whether a higher loss is no reason for a rollback from now on."""
    finding: Finding | None = None
    """Of a rollback: the finding that it answers, if there is one."""
    is_counted: bool = False
    """Of a rollback: whether the history ends with it; the script asked for the others, or they undo one."""

    healthy: bool = False
    """The states that wait for their proof are one healthy step further."""
    trouble: bool = False
    """They may carry what led to trouble: drop them."""
    snapshot: bool = False
    checkpoint: bool = False
    ending: Exception | None = None
    """What the training is to be ended with."""
    stop: StopPlace | None = None
    """The condition that is met before this step: all ranks skip it and end."""
    reset: bool = False
    """Reset the moments of the optimizers, and warm up."""
    cut: bool = False
    """Cut the learning rate for the rest of the training."""
    ahead: bool = False
    """A divergence may follow: write a checkpoint, and ease if that was asked for."""
    release: bool = False
    """End the reduction of the learning rate after a rollback: the weights were not to blame."""

    @property
    def rolls_back(self) -> bool:
        """Whether a state is to be restored."""
        return self.action == "rollback"

    def joined(self, later: Decision) -> Decision:
        """Both, where a second step was read before the decision on the first was carried out."""
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
HEALTHY = Decision(healthy=True)
"""A healthy step: the usual decision, and this very object."""
