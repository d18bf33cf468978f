"""Facts that the autopilot reports: rollbacks, skipped steps, and why it ended a training or its rollbacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum


@dataclass(frozen=True, slots=True)
class HeldRate:
    """A learning rate that had jumped, and is held down to that of the restored state."""

    scheduled: float
    """The learning rate that the script has set."""
    limit: float
    """The highest learning rate that is used."""
    doubles_in: int
    """Number of steps in which the limit doubles."""


@dataclass(frozen=True, slots=True)
class RollbackFacts(Facts):
    """The training was rolled back, or a rollback was reverted."""

    kind: ClassVar[str] = "rollback"
    metrics: ClassVar[tuple[str, ...]] = (
        "target",
        "onset",
        "steps_lost",
        "seconds",
        "rollbacks",
        "learning_rate_share",
        "steps_regained",
        "learning_rate",
    )

    reason: str
    """Why, in a sentence."""
    target: int
    """The step whose state was restored."""
    onset: int
    """The step at which the trouble began at the earliest."""
    steps_lost: int
    """Number of steps between that state and the step of the rollback."""
    seconds: float
    """Time that it took, in seconds."""
    rollbacks: int
    """Number of rollbacks of this training, this one included."""
    steps_regained: int | None = None
    """Where a rollback was reverted: number of steps that are no longer lost; else None."""
    learning_rate: float | None = None
    """Learning rate of the next step; None where it is not known."""
    learning_rate_of: str = ""
    """The optimizer that it belongs to, where there are several."""
    learning_rate_share: float | None = None
    """Factor on the learning rate for the rest of the training; None where there is none."""
    easing_factor: float = 1.0
    """Factor on the learning rate of the next step."""
    easing_steps: int = 0
    """Number of steps until the learning rate is as scheduled."""
    held: HeldRate | None = None
    """The limit of a learning rate that had jumped."""
    copies_left: int = 0
    """Number of frozen copies of the model that are not in the restored state."""
    finding: str = ""
    """Type of the finding that it answers; empty where no finding was."""
    finding_step: int | None = None
    """The step of that finding."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Rolled back from step 402 to step 380 (22 steps lost): …``."""
        done = f"Rolled back from step {step} to step {self.target} ({self.steps_lost} steps lost)"
        if self.steps_regained is not None:
            regained = f"({self.steps_regained} steps regained)"
            done = f"Reverted the rollback: weights of step {self.target} restored {regained}"
        copies = f" Not restored: frozen copies of the model made after step {self.target} ({self.copies_left})."
        return f"{done}: {self.reason}{self._eased()}{copies if self.copies_left else ''}"

    def _eased(self) -> str:
        whose = f" of {self.learning_rate_of}" if self.learning_rate_of else ""
        now = "" if self.learning_rate is None else f" now {self.learning_rate:.4g}: it"
        rate = f" Learning rate{whose}{now}"
        share = self.learning_rate_share
        if share is not None:
            return (
                f"{rate} is limited to {share:g} times its scheduled value from now on, after a ramp from "
                f"{share * self.easing_factor:g} times over {self.easing_steps} steps."
            )
        if self.easing_factor >= 1:
            return ""
        held, beside, more = self.held, "", ""
        if held is not None:
            beside = f" of step {self.target}, {held.limit:.4g} (the present {held.scheduled:.4g} is a jump),"
            more = f" That limit doubles every {held.doubles_in} steps."
        return (
            f"{rate} starts at {self.easing_factor:g} times its scheduled value{beside} and returns to it over "
            f"{self.easing_steps} steps.{more}"
        )


@dataclass(frozen=True, slots=True)
class DataChangedFacts(Facts):
    """The data or the loss function changed: the weights were not to blame for a rollback."""

    kind: ClassVar[str] = "data_changed"

    reason: str
    """How that is known, in a sentence."""
    onset: int
    """The step at about which the data changed."""
    rollbacks: int
    """Number of rollbacks of this training."""
    loss: float
    """The first loss of the restored weights, in the unit of the loss."""
    level: float
    """Median of the losses that they gave before, in the unit of the loss."""
    target: int | None = None
    """The step whose weights are used again; None where the training continues from the restored ones."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``The weights of step 380 give a loss of 5.2 where they gave 0.3: …``."""
        after = "The training continues from the restored weights."
        if self.target is not None:
            after = f"Going back to the weights of step {self.target}, as they were before the rollback."
        return f"{self.reason} {after} The present loss becomes the baseline."


class GaveUp(TextEnum):
    """How the autopilot stopped rolling back."""

    NO_ROLLBACK = "no rollback"
    """A trouble is not answered."""
    NOT_RESTORED = "not restored"
    """A rollback failed."""
    LEVEL_IGNORED = "level ignored"
    """A loss that rises triggers no rollback any more."""


@dataclass(frozen=True, slots=True)
class GiveUpFacts(Facts):
    """The autopilot stopped rolling back."""

    kind: ClassVar[str] = "give_up"
    metrics: ClassVar[tuple[str, ...]] = ("onset", "rollbacks")

    gave_up: GaveUp
    """What it stopped doing."""
    reason: str
    """Why a rollback was wanted and why there is none, in a sentence or two."""
    onset: int
    """The step at which the trouble began at the earliest."""
    rollbacks: int
    """Number of rollbacks of this training."""
    final: bool = True
    """Whether there are no further rollbacks."""
    ended_training: bool = False
    """Whether the training was ended with `TrainingDiverged`."""
    target: int | None = None
    """Where a rollback failed: the step whose state was to be restored."""
    failure: str = ""
    """Where a rollback failed: why."""
    not_restored: str = ""
    """Where a rollback failed: what is neither as it was nor as it should be."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``No rollback at step 402: …``."""
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
class EarlyStopFacts(Facts):
    """A condition of `stop_on` ended the training."""

    kind: ClassVar[str] = "early_stopping"

    condition: str
    """The condition, as it was written: ``loss>50``."""
    reason: str
    """How it was met: ``loss is 60``."""
    before_step: bool = False
    """Whether the step was not taken."""

    def statement(self, step: int) -> str:
        """``before step 74 was taken: loss is 60 (stop_on=loss>50).``"""
        when = f"before step {step} was taken" if self.before_step else f"after step {step}"
        return f"{when}: {self.reason} (stop_on={self.condition})."

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Training stopped before step 74 was taken: loss is 60 (stop_on=loss>50). …``"""
        weights = f"from before step {step}" if self.before_step else "those of this step"
        return (
            f"Training stopped {self.statement(step)} The weights are {weights}; restore() loads the last good state, "
            "if one exists."
        )


class SkipNews(TextEnum):
    """What is new about skipped steps."""

    FIRST = "first"
    """A step was skipped after one that was taken."""
    SCALE_LOWERED = "scale lowered"
    """The loss scale was lowered because several were."""
    NO_HELP = "no help"
    """So many were skipped in a row that a rollback is due."""
    NO_PROGRESS = "no progress"
    """So many were skipped in a row that the training makes no progress."""
    OFTEN = "often"
    """A large share of the last steps was skipped."""


@dataclass(frozen=True, slots=True)
class SkippedStepFacts(Facts):
    """The autopilot, or a loss scaler that it watches, skipped a step."""

    kind: ClassVar[str] = "skipped_step"
    metrics: ClassVar[tuple[str, ...]] = ("skips_in_a_row", "skipped_steps", "loss_scale", "share")

    news: SkipNews
    """What is new about it."""
    skips_in_a_row: int
    """Number of steps up to this one that were skipped in a row."""
    skipped_steps: int
    """Number of all steps skipped so far."""
    by_scaler: bool
    """Whether a loss scaler skipped it, because of the gradients."""
    loss_scale: float | None = None
    """The loss scale of the step; None without a loss scaler."""
    new_loss_scale: float | None = None
    """The loss scale from the next step on, where it was lowered."""
    share: float | None = None
    """Share of the last steps that were skipped, where that is a large one."""
    of_steps: int = 0
    """The number of these last steps."""
    buffers_not_restored: bool = False
    """Whether buffers are not finite, and no earlier copy of them exists."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Skipped step 320: non-finite or extremely large loss or gradients. …``"""
        lost = "Buffers (batch-norm statistics) are not finite and were not restored: no earlier copy of them exists."
        return f"{self._news(step)} {lost}" if self.buffers_not_restored else self._news(step)

    def _news(self, step: int) -> str:
        row = f"{self.skips_in_a_row} consecutive steps skipped"
        if self.news is SkipNews.NO_PROGRESS:
            return f"{row} up to step {step}: training makes no progress."
        if self.news is SkipNews.NO_HELP:
            return f"{row} up to step {step}: skipping does not help."
        if self.news is SkipNews.OFTEN and self.share is not None:
            many = round(self.share * self.of_steps)
            return f"{many} of the last {self.of_steps} steps were skipped, up to step {step}."
        if self.news is SkipNews.SCALE_LOWERED:
            return f"{row}; loss scale lowered from {self.loss_scale:g} to {self.new_loss_scale:g}."
        found = "non-finite or extremely large loss or gradients"
        found = "non-finite gradients, found by the loss scaler" if self.by_scaler else found
        return f"Skipped step {step}: {found}. Weights and optimizer state are unchanged."


class Smaller(TextEnum):
    """How the autopilot made steps smaller without a rollback."""

    CUT = "cut_learning_rate"
    """The learning rate is limited for the rest of the training."""
    RESET = "reset_at_spike"
    """The moments of the optimizers were reset, and the learning rate is warmed up."""
    AHEAD = "act_ahead"
    """A divergence may follow: the learning rate is eased, or a checkpoint was written."""


@dataclass(frozen=True, slots=True)
class SmallerStepsFacts(Facts):
    """The autopilot made the next steps smaller without a rollback."""

    kind: ClassVar[str] = "smaller_steps"
    metrics: ClassVar[tuple[str, ...]] = ("factor", "steps", "tensors")

    how: Smaller
    """The option that asked for it."""
    factor: float | None = None
    """Factor on the learning rate of the next step; None where it is not reduced."""
    steps: int | None = None
    """Number of steps until it is as scheduled; None for the rest of the training."""
    tensors: int | None = None
    """Number of tensors of moments that were reset."""
    checkpoint: str = ""
    """What is said of a checkpoint that was written."""
    value: str = ""
    """The value of the option `act_ahead`."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Learning rate limited to 0.5 times its scheduled value for the rest of the training, …``"""
        if self.how is Smaller.CUT:
            return (
                f"Learning rate limited to {self.factor:g} times its scheduled value for the rest of the training, "
                f"after the first broken step (cut_learning_rate={self.factor:g})."
            )
        eased = ""
        if self.factor is not None:
            eased = (
                f"Learning rate starts at {self.factor:g} times its scheduled value and returns to it over "
                f"{self.steps} steps"
            )
        if self.how is Smaller.RESET:
            reset = f"Reset {self.tensors} tensors of optimizer moments after a spike, behind step {step}."
            return f"{reset} {eased} (reset_at_spike=True)."
        done = " ".join(filter(None, (self.checkpoint, f"{eased}." if eased else "")))
        return f"{done} A divergence may follow (act_ahead={self.value!r})."


@dataclass(frozen=True, slots=True)
class CheckpointFailedFacts(Facts):
    """A checkpoint could not be written."""

    kind: ClassVar[str] = "checkpoint_failed"

    reason: str = ""
    """The error of the system; empty where the state is split over processes."""
    folder: str = ""
    """Where it was to be written."""
    newest: int | None = None
    """The step of the newest checkpoint there; None where there is none."""
    split_by: str = ""
    """What splits the state over processes; empty where it is not split."""

    def numbers(self) -> dict[str, float]:
        """None: the sentence has them."""
        return {}

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Checkpoint of step 400 not written to /a (No space left on device). …``"""
        if self.split_by:
            return (
                f"No checkpoints written: the state is split over processes ({self.split_by}), and one file would "
                "hold only a part of it. Rollbacks to snapshots in memory still work."
            )
        last = "no checkpoint there yet" if self.newest is None else f"newest checkpoint there: step {self.newest}"
        return f"Checkpoint of step {step} not written to {self.folder} ({self.reason}). Training continues; {last}."


@dataclass(frozen=True, slots=True)
class CheckpointNotFiniteFacts(Facts):
    """A checkpoint was not written because the state is not finite."""

    kind: ClassVar[str] = "checkpoint_not_finite"

    tensors: int
    """Number of tensors that are not finite."""
    first: str
    """The first of them."""

    def numbers(self) -> dict[str, float]:
        """None: the sentence has them."""
        return {}

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Checkpoint of step 400 not written: 3 non-finite tensors (such as net.0.weight). …``"""
        return (
            f"Checkpoint of step {step} not written: {self.tensors} non-finite tensors (such as {self.first}). Earlier "
            "checkpoints are kept."
        )
