"""Findings that the autopilot reports beside rollbacks: smaller steps, changed data, skipped steps, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class DataChangedFacts(Facts):
    """The data or the loss function changed: the weights were not to blame for a rollback."""

    kind = "data_changed"

    reason: str  # How that is known, in a sentence
    onset: int  # The step at about which the data changed
    rollbacks: int  # Number of rollbacks of this training
    loss: float  # The first loss of the restored weights, in the unit of the loss
    level: float  # Median of the losses that they gave before, in the unit of the loss
    target: int | None = None  # The step whose weights are used again; None where the restored ones are kept

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        after = "The training continues from the restored weights."
        if self.target is not None:
            after = f"Going back to the weights of step {self.target}, as they were before the rollback."
        return f"{self.reason} {after} The present loss becomes the baseline."


@dataclass(frozen=True, slots=True)
class EarlyStopFacts(Facts):
    kind = "early_stopping"

    condition: str  # The condition, as it was written: ``loss>50``
    reason: str  # How it was met: ``loss is 60``
    before_step: bool = False  # Whether the step was not taken

    def statement(self, step: int) -> str:
        return f"{self._when(step)}: {self.reason} (stop_on={self.condition})."

    def _when(self, step: int) -> str:
        return f"before step {step} was taken" if self.before_step else f"after step {step}"

    def reason_first(self, step: int) -> str:
        """``loss is 60 (stop_on=loss>50), before step 74 was taken``."""
        return f"{self.reason} (stop_on={self.condition}), {self._when(step)}"

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        weights = f"from before step {step}" if self.before_step else "those of this step"
        return (
            f"Training stopped {self.statement(step)} The weights are {weights}; restore() loads the last good state, "
            "if one exists."
        )


class SkipNews(TextEnum):
    FIRST = "first"  # a step was skipped after one that was taken
    SCALE_LOWERED = "scale lowered"  # the loss scale was lowered because several were
    NO_HELP = "no help"  # steps skipped in a row are enough for a rollback
    NO_PROGRESS = "no progress"  # steps skipped in a row are enough to say that the training makes no progress
    OFTEN = "often"  # a large share of the last steps was skipped


@dataclass(frozen=True, slots=True)
class SkippedStepFacts(Facts):
    """The autopilot, or a loss scaler that it watches, skipped a step."""

    kind = "skipped_step"
    metrics = ("skips_in_a_row", "skipped_steps", "loss_scale", "share")

    news: SkipNews  # What is new about it
    skips_in_a_row: int  # Number of steps up to this one that were skipped in a row
    skipped_steps: int  # Number of all steps skipped so far
    by_scaler: bool  # Whether a loss scaler skipped it, because of the gradients
    loss_scale: float | None = None  # The loss scale of the step; None without a loss scaler
    new_loss_scale: float | None = None  # The loss scale from the next step on, where it was lowered
    share: float | None = None  # Share of the last steps that were skipped, where that is a large one
    of_steps: int = 0  # The number of these last steps
    buffers_not_restored: bool = False  # Whether buffers are not finite, and no earlier copy of them exists

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        buffers = (
            " Buffers (batch-norm statistics) are not finite and were not restored: no earlier copy of them exists."
        )
        return f"{self._news(step)}{buffers if self.buffers_not_restored else ''}"

    def _news(self, step: int) -> str:
        row = f"{self.skips_in_a_row} consecutive steps skipped"
        if self.news is SkipNews.NO_PROGRESS:
            return f"{row} up to step {step}: training makes no progress."
        if self.news is SkipNews.NO_HELP:
            return f"{row} up to step {step}: skipping does not help."
        if self.news is SkipNews.OFTEN and self.share is not None:
            skipped = round(self.share * self.of_steps)
            return f"{skipped} of the last {self.of_steps} steps were skipped, up to step {step}."
        if self.news is SkipNews.SCALE_LOWERED:
            return f"{row}; loss scale lowered from {self.loss_scale:g} to {self.new_loss_scale:g}."
        reason = "non-finite or extremely large loss or gradients"
        if self.by_scaler:
            reason = "non-finite gradients, found by the loss scaler"
        return f"Skipped step {step}: {reason}. Weights and optimizer state are unchanged."


class Smaller(TextEnum):
    CUT = "cut_learning_rate"  # the learning rate is limited for the rest of the training
    RESET = "reset_at_spike"  # the moments of the optimizers were reset, and the learning rate is warmed up
    AHEAD = "act_ahead"  # a divergence may follow: the learning rate is eased, or a checkpoint was written


@dataclass(frozen=True, slots=True)
class SmallerStepsFacts(Facts):
    kind = "smaller_steps"

    how: Smaller  # The option that asked for it
    factor: float | None = None  # Factor on the learning rate of the next step; None where it is not reduced
    steps: int | None = None  # Number of steps until it is as scheduled; None for the rest of the training
    tensors: int | None = None  # Number of tensors of moments that were reset
    checkpoint: str = ""  # The sentence about a checkpoint that was written
    value: str = ""  # The value of the option `act_ahead`

    def sentence(self, step: int, _unit: str = "step", /) -> str:
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
    kind = "checkpoint_failed"

    reason: str = ""  # The error of the system; empty where the state is split over processes
    folder: str = ""  # Where it was to be written
    newest: int | None = None  # The step of the newest checkpoint there, if there is one
    split_by: str = ""  # What splits the state over processes; empty where it is not split

    def numbers(self) -> dict[str, float]:
        return {}

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        if self.split_by:
            return (
                f"No checkpoints written: the state is split over processes ({self.split_by}), and one file would "
                "hold only a part of it. Rollbacks to snapshots in memory still work."
            )
        last = "no checkpoint there yet" if self.newest is None else f"newest checkpoint there: step {self.newest}"
        return f"Checkpoint of step {step} not written to {self.folder} ({self.reason}). Training continues; {last}."


@dataclass(frozen=True, slots=True)
class CheckpointNotFiniteFacts(Facts):
    kind = "checkpoint_not_finite"

    tensors: int  # Number of tensors that are not finite
    first: str  # The first of them

    def numbers(self) -> dict[str, float]:
        return {}

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        return (
            f"Checkpoint of step {step} not written: {self.tensors} non-finite tensors (such as {self.first}). Earlier "
            "checkpoints are kept."
        )


@dataclass(frozen=True, slots=True)
class DataChanged(FindingType):
    """The data or the loss function changed, and the weights did not cause the divergence.

    What it sees: the losses after a rollback to a state that had proved good. The very first one, before any update,
    and the median of the first 3 are nearer to the loss before the rollback than to its level. That median
    lies at least 5 standard errors above the losses around that state when it was trained the first time. The mean of
    the first 10 losses is high, too.

    Why it matters: a rollback does not help against it, nor does a lower learning rate. Of the weights from before the
    rollback and the restored ones, those with the lower loss are trained on, without a reduced learning rate where
    those from before the rollback are. It counts as no rollback and ends no training.

    What to try: check what changed at that step: the data set or its order, preprocessing, labels, a loss term or its
    weight. If it is intended, nothing has to be done.

    When it is wrong: noise does so once in thousands of rollbacks. Where the loss function had changed before the
    divergence without raising the loss at once, it names the step of the divergence.

    Reference: Megatron-LM's rerun state machine, which tells causes apart by computing the same once more
    """

    kind = "data_changed"
    noun = "a change of the data or the loss function"
    plural = "changes of the data or the loss function"
    order = 1052
    remedies = (Remedy(Action.CHECK_DATA_CHANGE), Remedy(Action.KEEP_IF_INTENDED))


@dataclass(frozen=True, slots=True)
class SmallerSteps(FindingType):
    """The autopilot made the next steps smaller without a rollback.

    What it sees: every action of the options `reset_at_spike`, `cut_learning_rate` and `act_ahead` of `RollbackPolicy`,
    with its factor and its number of steps. None of them is on by default.

    Why it matters: the learning rate that is used is below the one that the schedule shows.

    What to try: compare the loss with a run without the option; fix the cause that the diagnosis names.

    When it is wrong: a false alarm makes steps smaller, too.

    Reference: Huang et al., SPAM (arXiv:2501.06842)
    """

    kind = "smaller_steps"
    noun = "a phase of smaller steps"
    plural = "phases of smaller steps"
    order = 1055
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.COMPARE_WITHOUT_OPTION), Remedy(Action.FIX_CAUSE))


@dataclass(frozen=True, slots=True)
class CheckpointFailed(FindingType):
    """A checkpoint could not be written.

    What it sees: a disk error while a checkpoint was written; older ones are not touched. Once, at the start: a state
    that is sharded over several processes (FSDP, `DTensor`, `ZeroRedundancyOptimizer`), of which a file would hold a
    part. No checkpoint of it is written; rollbacks from memory work as usual.

    Why it matters: rolling back further than memory reaches, and resuming after a crash, need checkpoints.

    What to try: free disk space; set another directory; save checkpoints of a sharded state with
    `torch.distributed.checkpoint` from all processes.

    When it is wrong: a network file system that was unavailable for a moment.

    Reference: https://man7.org/linux/man-pages/man2/fsync.2.html
    """

    kind = "checkpoint_failed"
    noun = "a checkpoint that failed"
    plural = "checkpoints that failed"
    order = 1090
    remedies = (Remedy(Action.FREE_DISK_SPACE),)


@dataclass(frozen=True, slots=True)
class CheckpointNotFinite(FindingType):
    """A checkpoint was not written because the state is not finite.

    What it sees: NaN or infinity in weights, buffers or the optimizer state when a checkpoint was due.

    Why it matters: a non-finite checkpoint that replaces a good one makes the training unrecoverable.

    What to try: find what became non-finite first; the earlier checkpoints are kept.

    When it is wrong: models that keep infinities in buffers from some step on.

    Reference: https://docs.pytorch.org/docs/stable/notes/serialization.html
    """

    kind = "checkpoint_not_finite"
    noun = "a state that is not finite"
    plural = "states that are not finite"
    order = 1100
    remedies = (Remedy(Action.FIND_FIRST_NON_FINITE),)


@dataclass(frozen=True, slots=True)
class EarlyStopping(FindingType):
    """The training was stopped by a condition of `stop_on`.

    What it sees: the first condition of `autolog(stop_on=...)` that is met. What is known before a step, such as its
    loss and its gradient norm, stops the training before that step is taken; a validation loss before the next one.

    Why it matters: the training ended here on purpose, with `TrainingDiverged`.

    What to try: load the best or the last good checkpoint with `restore()`; fix the cause; relax the condition.

    When it is wrong: a condition that healthy steps meet, such as a gradient norm during warm-up.

    Reference: Prechelt, Early stopping, but when? (1998)
    """

    kind = "early_stopping"
    noun = "an early stop"
    plural = "early stops"
    order = 1065
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.LOAD_GOOD_CHECKPOINT), Remedy(Action.RELAX_STOP_CONDITION))
