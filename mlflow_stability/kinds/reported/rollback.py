"""Findings about rollbacks, and about the end of rollbacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class HeldRate:
    """A learning rate that had jumped, and is held down to that of the restored state."""

    scheduled: float  # The learning rate that the script has set
    limit: float  # The highest learning rate that is used
    doubles_in: int  # Number of steps in which the limit doubles


@dataclass(frozen=True, slots=True)
class RollbackFacts(Facts):
    """The training was rolled back, or a rollback was reverted."""

    kind = "rollback"
    metrics = (
        "target",
        "onset",
        "steps_lost",
        "seconds",
        "rollbacks",
        "learning_rate_share",
        "steps_regained",
        "learning_rate",
    )

    reason: str  # Why, in a sentence
    target: int  # The step whose state was restored
    onset: int  # The step at which the trouble began at the earliest
    steps_lost: int  # Number of steps between that state and the step of the rollback
    seconds: float  # Time that it took, in seconds
    rollbacks: int  # Number of rollbacks of this training, this one included
    steps_regained: int | None = None  # Where a rollback was reverted: number of steps that are not lost any more
    learning_rate: float | None = None  # Learning rate of the next step; None where it is not known
    learning_rate_of: str = ""  # The optimizer that it belongs to, where there are several
    learning_rate_share: float | None = None  # Factor on the learning rate for the rest of the training, if limited
    easing_factor: float = 1.0  # Factor on the learning rate of the next step
    easing_steps: int = 0  # Number of steps until the learning rate is as scheduled
    held: HeldRate | None = None  # The limit of a learning rate that had jumped
    copies_left: int = 0  # Number of frozen copies of the model that are not in the restored state
    finding: str = ""  # Type of the finding that it answers; empty where no finding was
    finding_step: int | None = None  # The step of that finding

    @property
    def reverts(self) -> bool:
        """Whether it reverts the rollback before it."""
        return self.steps_regained is not None

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        done = f"Rolled back from step {step} to step {self.target} ({self.steps_lost} steps lost)"
        if self.reverts:
            regained = f"({self.steps_regained} steps regained)"
            done = f"Reverted the rollback: weights of step {self.target} restored {regained}"
        copies = f" Not restored: frozen copies of the model made after step {self.target} ({self.copies_left})."
        return f"{done}: {self.reason}{self._rate_sentence()}{copies if self.copies_left else ''}"

    def _rate_sentence(self) -> str:
        owner = f" of {self.learning_rate_of}" if self.learning_rate_of else ""
        now = "" if self.learning_rate is None else f" now {self.learning_rate:.4g}: it"
        rate = f" Learning rate{owner}{now}"
        share = self.learning_rate_share
        if share is not None:
            return (
                f"{rate} is limited to {share:g} times its scheduled value from now on, after a ramp from "
                f"{share * self.easing_factor:g} times over {self.easing_steps} steps."
            )
        if self.easing_factor >= 1:
            return ""
        start, over = f"{rate} starts at {self.easing_factor:g} times", f"over {self.easing_steps} steps"
        if self.held is None:
            return f"{start} its scheduled value and returns to it {over}."
        limit = f"{self.held.limit:.4g}"
        return (
            f"{start} {limit}, its scheduled value of step {self.target}, and returns to that {over}: the present one, "
            f"{self.held.scheduled:.4g}, is a jump. The limit, {limit}, doubles every {self.held.doubles_in} steps."
        )


def is_revert(finding: Finding) -> bool:
    """Whether a finding is a rollback that reverts the one before it."""
    return isinstance(finding.facts, RollbackFacts) and finding.facts.reverts


def rollbacks_kept(facts: Iterable[Facts | None]) -> int:
    """Return how many rollbacks were not reverted: a revert is recorded as a rollback of its own."""
    rollbacks = [rollback for rollback in facts if isinstance(rollback, RollbackFacts)]
    return max(0, len(rollbacks) - 2 * sum(rollback.reverts for rollback in rollbacks))


class GaveUp(TextEnum):
    NO_ROLLBACK = "no rollback"  # a trouble is not answered
    NOT_RESTORED = "not restored"  # a rollback failed
    LEVEL_IGNORED = "level ignored"  # a loss that rises triggers no rollback any more


@dataclass(frozen=True, slots=True)
class GiveUpFacts(Facts):
    kind = "give_up"
    metrics = ("onset", "rollbacks")

    gave_up: GaveUp  # What it stopped doing
    reason: str  # Why a rollback was needed and why it did not happen, in a sentence or two
    onset: int  # The step at which the trouble began at the earliest
    rollbacks: int  # Number of rollbacks of this training
    final: bool = True  # Whether there are no further rollbacks
    ended_training: bool = False  # Whether the training was ended with `TrainingDiverged`
    target: int | None = None  # Where a rollback failed: the step whose state was to be restored
    failure: str = ""  # Where a rollback failed: why
    not_restored: str = ""  # Where a rollback failed: what is neither as it was nor as it should be

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        if self.gave_up is GaveUp.LEVEL_IGNORED:
            return self.reason
        if self.gave_up is GaveUp.NOT_RESTORED:
            unchanged = f"Nothing was changed: weights, buffers and optimizer state are those of step {step}."
            return (
                f"Rollback from step {step} to step {self.target} failed ({self.failure}). "
                f"{self.not_restored or unchanged} No further rollbacks; broken steps are still skipped. Reason for "
                f"the rollback: {self.reason}"
            )
        after = " No further rollbacks; broken steps are still skipped." if self.final else ""
        if self.ended_training:
            after = " Training stopped with TrainingDiverged."
        return f"No rollback at step {step}: {self.reason}{after}"


@dataclass(frozen=True, slots=True)
class Rollback(FindingType):
    """The training was rolled back to an earlier state and continued.

    What it sees: every rollback of `autolog(rollback=True)`, with its reason, the step it returned to, the lost steps
    and the time it took.

    Why it matters: the steps in between are lost, and their cause may return.

    What to try: watch the next 1000 steps; fix the cause that the diagnosis names.

    When it is wrong: a false alarm causes a rollback, too; the policy defines which findings do.

    Reference: Chowdhery et al., PaLM (arXiv:2204.02311, 5.1)
    """

    kind = "rollback"
    noun = "a rollback"
    plural = "rollbacks"
    order = 1050
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.WATCH_LOSS), Remedy(Action.FIX_CAUSE))


@dataclass(frozen=True, slots=True)
class GiveUp(FindingType):
    """The autopilot stopped rolling back.

    What it sees: trouble that returned after as many rollbacks as the policy allows, or without a good state before it.
    Or a rollback that failed, here or in another process of the training: then all processes keep their weights, and
    none tries again. It is a warning where only one trouble is not answered: there is no state, or the loss rises at
    equal distances and two rollbacks did not prevent it. It is INFO where a loss that rises triggers no rollback any
    more, because two rollbacks gave no lower loss and were reverted.

    Why it matters: the training will not recover by itself. It goes on, and broken steps are skipped. It is stopped
    where weights are not finite and no finite state is left, after 100 consecutive skipped steps
    (`raise_after_skips`), and with `on_give_up="raise"`.

    What to try: stop it; fix the cause, most often the learning rate; restart from the last good checkpoint. After a
    failed rollback: build models and optimizers once, and give all processes the same ones.

    When it is wrong: a cause that ends by itself a little later than the policy waits.

    Reference: the fields `max_rollbacks` and `on_give_up` of `RollbackPolicy`
    """

    kind = "give_up"
    noun = "the end of the rollbacks"
    order = 1060
    severities = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
    remedies = (LOWER_RATE_2_TO_5, Remedy(Action.RESTART_FROM_LAST_GOOD))
