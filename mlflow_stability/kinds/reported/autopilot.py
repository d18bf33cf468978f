"""Findings that the autopilot reports: rollbacks, broken batches, the origin of a NaN, failed checkpoints.

They are reported, not detected; each is documented here in the same sections as every detector.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType, Instability
from mlflow_stability.vocabulary.result import LOWER_RATE_2_TO_5, Action, Remedy
from mlflow_stability.vocabulary.result.event import Severity


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
    severities = (Severity.WARNING,)
    remedies = (
        Remedy(Action.CHECK_DATA_CHANGE),
        Remedy(Action.KEEP_IF_INTENDED),
    )


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
    remedies = (
        LOWER_RATE_2_TO_5,
        Remedy(Action.RESTART_FROM_LAST_GOOD),
    )


@dataclass(frozen=True, slots=True)
class BrokenBatch(FindingType):
    """The batch of a skipped step was inspected and run again.

    What it sees: shapes, ranges, non-finite values and token statistics of the batch, and whether the same batch gives
    a finite result the second time.

    Why it matters: a finite result the second time indicates the hardware; a non-finite one indicates data or numerics.

    What to try: open the saved batch; inspect rows with non-finite or out-of-range values.

    When it is wrong: labels that only the script's own loss function receives are not in the recorded batch.

    Reference: Megatron-LM's rerun state machine
    """

    kind = "broken_batch"
    instability = Instability.SIGN
    noun = "a broken batch"
    plural = "broken batches"
    order = 1070
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.OPEN_SAVED_BATCH),)


@dataclass(frozen=True, slots=True)
class SpikeBatch(FindingType):
    """The batch of a loss spike was kept.

    What it sees: shapes, ranges and token statistics of the batch of a spike whose loss is finite, with its tensors in
    a file. Of 64 steps in a row at most one batch is kept, that of the highest loss; in one training 10, of 256 MiB.

    Why it matters: a spike that recovers by itself is mostly that of one batch, which later is hard to find again.

    What to try: open the saved batch; compare its ranges with those of other batches.

    When it is wrong: labels that only the script's own loss function receives are not in the batch. Batches that the
    script overwrites in place are not kept, nor are those on an accelerator without the guard.

    Reference: PaLM (arXiv 2204.02311), section 5.1, which skipped the batches of loss spikes
    """

    kind = "spike_batch"
    instability = Instability.SIGN
    noun = "a kept batch"
    plural = "kept batches"
    order = 1075
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.OPEN_SAVED_BATCH),)


@dataclass(frozen=True, slots=True)
class NanOrigin(FindingType):
    """The operation that produced the first non-finite value was found.

    What it sees: the batch of the broken step is run again, forward, and backward where the forward pass is finite, and
    every operation is checked. The result is an input, a weight, the optimizer, an operation with its source line and
    input range, or the loss function. With the guard, each series of broken steps is checked; without it, the first
    broken step of a training on the CPU.

    Why it matters: a NaN spreads to the whole model within one step, which hides its origin.

    What to try: keep the inputs of that operation within its range; inspect the saved batch.

    When it is wrong: computations outside the model are seen only through what they return, so the operation of a loss
    function is inferred. A model with random generators of its own runs differently the second time.

    Reference: torch.autograd.detect_anomaly, which finds the operation of a backward pass by running it all slowly
    """

    kind = "nan_origin"
    instability = Instability.SIGN
    noun = "a first NaN that was traced"
    plural = "first NaNs that were traced"
    order = 1080
    severities = (Severity.INFO,)
    remedies = (
        Remedy(Action.KEEP_INPUTS_IN_RANGE),
        Remedy(Action.OPEN_SAVED_BATCH),
    )


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
    remedies = (
        Remedy(Action.LOAD_GOOD_CHECKPOINT),
        Remedy(Action.RELAX_STOP_CONDITION),
    )
