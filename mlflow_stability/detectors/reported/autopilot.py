"""What the autopilot says of itself: that it went back, gave up, looked at a batch, could not keep a checkpoint.

Nothing here looks at points. The words stand here, in the sections of every judgement, so that each is explained in the
same way; a rollback belongs to the training's story as much as a spike does.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.finding_type import FindingType
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class Rollback(FindingType):
    """The training was set back to a good state and went on.

    What it sees: what `autolog(rollback=True)` did: the reason, the step of the state, the steps lost, the time taken.

    Why it matters: the steps between are lost, and what led to it may come again.

    What to try: watch the next 1000 steps; mend the cause that the diagnosis names.

    When it is wrong: a finding that was a false alarm leads back too; the policy says which findings do.

    Reference: Chowdhery et al., PaLM (arXiv:2204.02311, 5.1)
    """

    kind = "rollback"
    noun = "a rollback"
    plural = "rollbacks"
    order = 1050
    severities = (Severity.INFO,)
    remedies = ("Watch the next 1000 steps.", "Mend the cause.")


@dataclass(frozen=True, slots=True)
class GiveUp(FindingType):
    """The autopilot does not go back any more.

    What it sees: trouble that came again after as many rollbacks as the policy allows, or with no good state before it;
    a return that failed, here or in another process of the training: then all keep the weights that they have, and
    none tries again.

    Why it matters: the training will not recover by itself. It is stopped where rollbacks were tried and did not help,
    unless `on_give_up="continue"`; else broken steps are only skipped from here on.

    What to try: stop it; mend the cause, most often the learning rate; go on from the last good checkpoint. After a
    return that failed: build models and optimizers once, and let all processes hold the same ones.

    When it is wrong: a cause that passes by itself a little later than the policy waits.

    Reference: the fields `max_rollbacks` and `on_give_up` of `RollbackPolicy`
    """

    kind = "give_up"
    noun = "the end of the rollbacks"
    order = 1060
    severities = (Severity.WARNING, Severity.CRITICAL)
    remedies = (
        "Lower the learning rate 2-5 times.",
        "Go on from the last good checkpoint.",
    )


@dataclass(frozen=True, slots=True)
class BrokenBatch(FindingType):
    """The batch of a skipped step was looked at, and run once more.

    What it sees: shapes, ranges, what is not finite and token statistics of the batch, and whether the same batch gives
    a finite result the second time.

    Why it matters: a result that is finite the second time points at the hardware, one that is not at data or numerics.

    What to try: open the saved batch; look at the rows whose values are not finite or far out of range.

    When it is wrong: labels that only the script's own loss function gets are not in the batch that was seen.

    Reference: Megatron-LM's rerun state machine
    """

    kind = "broken_batch"
    noun = "a broken batch"
    plural = "broken batches"
    order = 1070
    severities = (Severity.INFO,)
    remedies = ("Open the saved batch.",)


@dataclass(frozen=True, slots=True)
class NanOrigin(FindingType):
    """The first number that is not finite was found, with the module and the operation that made it.

    What it sees: the batch of a step that broke is run once more, forward, and backward where the forward pass is
    sound, and every operation is watched. It tells an input, a weight, the optimizer, an operation with the script's
    own line and the range of what went into it, and the loss function. With the guard, each row of broken steps is
    looked at; without it the first broken step of a training on the host.

    Why it matters: a NaN spreads to the whole model within a step, and hides where it came from.

    What to try: keep what goes into that operation within its range; look at the saved batch.

    When it is wrong: what the script computes outside of its model is seen only by what came back from it, and so the
    operation of a loss function is inferred; a model that draws from generators of its own runs differently again.

    Reference: torch.autograd.detect_anomaly, which finds the operation of a backward pass by running it all slowly
    """

    kind = "nan_origin"
    noun = "a first NaN that was traced"
    plural = "first NaNs that were traced"
    order = 1080
    severities = (Severity.INFO,)
    remedies = (
        "Keep what goes into this operation within its range.",
        "Look at the saved batch.",
    )


@dataclass(frozen=True, slots=True)
class CheckpointFailed(FindingType):
    """A checkpoint could not be written.

    What it sees: an error of the disk while a checkpoint was being written; the older ones are not touched. Once, at
    the start: a state that is split over several processes (FSDP, `DTensor`, `ZeroRedundancyOptimizer`), of which a
    file would hold a part; no checkpoint is written of it, and going back from memory works as ever.

    Why it matters: going back further than memory reaches, and going on after a crash, need checkpoints.

    What to try: free some space; give another directory; of a split state save checkpoints yourself, with
    `torch.distributed.checkpoint` from all processes.

    When it is wrong: a network file system that was away for a moment.

    Reference: https://man7.org/linux/man-pages/man2/fsync.2.html
    """

    kind = "checkpoint_failed"
    noun = "a checkpoint that failed"
    plural = "checkpoints that failed"
    order = 1090
    remedies = ("Free some space there, or give another directory.",)


@dataclass(frozen=True, slots=True)
class CheckpointNotFinite(FindingType):
    """A state was not written, because it is not finite.

    What it sees: NaN or infinity in weights, buffers or the optimizer's state when a checkpoint was due.

    Why it matters: a poisoned checkpoint that takes the place of a good one ends a training for good.

    What to try: look what became non-finite first; the checkpoints from before are there.

    When it is wrong: models that keep infinities in buffers from some step on.

    Reference: https://docs.pytorch.org/docs/stable/notes/serialization.html
    """

    kind = "checkpoint_not_finite"
    noun = "a state that is not finite"
    plural = "states that are not finite"
    order = 1100
    remedies = ("Look what became non-finite first.",)


AUTOPILOT_KINDS: tuple[
    type[Rollback | GiveUp | BrokenBatch | NanOrigin | CheckpointFailed | CheckpointNotFinite], ...
] = (
    Rollback,
    GiveUp,
    BrokenBatch,
    NanOrigin,
    CheckpointFailed,
    CheckpointNotFinite,
)
"""All of them."""
