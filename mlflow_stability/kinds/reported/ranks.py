"""Findings about one of several ranks that train together.

They are reported by the session, not detected; each is documented here in the same sections as every detector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.result import CLIP_AT_1, Action, Remedy
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class RankNonfinite(FindingType):
    """The first non-finite loss came from one rank.

    What it sees: which rank had a NaN or infinite loss first. Ranks compare their losses at least every 10 steps, and
    each remembers the first step since then.

    Why it matters: after one step the NaN is on all ranks, and nothing else says where it began.

    What to try: inspect the batch of that rank at that step; check that host for hardware errors.

    When it is wrong: a loss that is only logged. The gradients of one rank may be NaN where its loss is finite; then
    no rank is named.

    Reference: https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    kind = "rank_nonfinite"
    noun = "a NaN that began on one rank"
    plural = "NaNs that began on one rank"
    order = 1160
    severities = (Severity.WARNING,)
    remedies = (
        Remedy(Action.INSPECT_BATCH_OF_RANK),
        Remedy(Action.CHECK_HOST_OF_RANK),
    )


@dataclass(frozen=True, slots=True)
class RankDied(FindingType):
    """The process of one rank ended, and the training with it.

    What it sees: the process of another rank that ended before rank 0 did, in a training that did not end well. The
    courier waits for the ends of all processes of its own machine.

    Why it matters: the other ranks fail a moment later, in a collective or by the launcher, and their messages hide
    which one was first.

    What to try: read the log of that rank; check the kernel log of that host for the out-of-memory killer.

    When it is wrong: two processes that end within the same millisecond may both be named. Processes on other machines
    are not watched, and where the first end was there, another rank is named, or none.

    Reference: https://docs.pytorch.org/docs/stable/elastic/errors.html
    """

    kind = "rank_died"
    noun = "a rank that died"
    plural = "ranks that died"
    order = 1155
    severities = (Severity.INFO, Severity.WARNING)
    remedies = (
        Remedy(Action.READ_LOG_OF_RANK),
        Remedy(Action.CHECK_KERNEL_LOG_OF_RANK),
    )


@dataclass(frozen=True, slots=True)
class JobRestarted(FindingType):
    """The launcher started the job again.

    What it sees: the environment of `torchrun --max-restarts`. The attempt is recorded into the run of the one before,
    behind its steps.

    Why it matters: what was trained since the last checkpoint is lost, or everything where nothing was restored.

    What to try: call restore() at the start of the script, on every rank; see `rank_died` for what ended the attempt
    before.

    When it is wrong: nodes that join or leave on purpose restart the job, too.

    Reference: https://docs.pytorch.org/docs/stable/elastic/run.html
    """

    kind = "job_restarted"
    noun = "a restart of the job"
    plural = "restarts of the job"
    order = 1157
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.RESTORE_ON_EVERY_RANK),)


@dataclass(frozen=True, slots=True)
class RankSpike(FindingType):
    """A loss spike began on one rank.

    What it sees: the rank whose own loss was the first to be a `loss_spike`. Each rank judges its own losses, and ranks
    compare at least every 10 steps. It is reported where rank 0 has a spike too, and where the spike is one of the mean
    loss of all ranks: at least 8σ times the square root of the number of ranks.

    Why it matters: the gradient of that batch reaches all ranks. Only rank 0 records its loss, so a bad batch of
    another rank is not in the curve of the loss.

    What to try: inspect the batch of that rank at that step; clip gradients at 1.0; check that host for hardware
    errors.

    When it is wrong: ranks that train on different data on purpose. Spikes on all ranks at the same step do not come
    from one batch: look at the learning rate and the weights.

    Reference: OLMo 2 (arXiv:2501.00656, 3.2)
    """

    kind = "rank_spike"
    noun = "a loss spike that began on one rank"
    plural = "loss spikes that began on one rank"
    order = 1162
    severities = (Severity.INFO, Severity.WARNING)
    remedies = (
        Remedy(Action.INSPECT_BATCH_OF_RANK),
        CLIP_AT_1,
        Remedy(Action.CHECK_HOST_OF_RANK),
    )


@dataclass(frozen=True, slots=True)
class RankSlowStep(FindingType):
    """One rank made all others wait at one step.

    What it sees: the time from the end of a step to the next backward pass, on each rank. A slow step takes at least 5
    times the usual time of that rank and 0.5 s more, while no more than half of the ranks are slow at it. A rank is
    named again only after a step twice as long.

    Why it matters: all ranks wait for the slowest one.

    What to try: look for checkpoints, evaluation or logging on that rank; profile its data loader.

    When it is wrong: a rank that evaluates or writes checkpoints on purpose. Where the forward pass communicates (FSDP,
    tensor parallelism), all ranks wait in it for the slow one, and none is named.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    times: ClassVar[float] = 5.0
    """Minimum ratio to the usual time of that rank."""
    seconds: ClassVar[float] = 0.5
    """Minimum difference from it."""

    kind = "rank_slow_step"
    noun = "a step that one rank made longer"
    plural = "steps that one rank made longer"
    order = 1165
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.LOOK_FOR_WORK_OF_RANK),
        Remedy(Action.PROFILE_DATA_LOADER_OF_RANK),
    )


@dataclass(frozen=True, slots=True)
class Straggler(FindingType):
    """One rank is slower than the others.

    What it sees: the time from the end of a step to the next backward pass, on each rank. A straggler takes more than
    twice the median of the others, and at least 20 ms more, in 5 comparisons in a row. That time holds loading of
    data and the forward pass.

    Why it matters: all ranks wait for the slowest one at every step.

    What to try: profile the data loader of that rank; look for other processes on its host; check the clock and
    temperature of its device.

    When it is wrong: a rank that evaluates or logs on purpose. Where the forward pass communicates (FSDP, tensor
    parallelism), all ranks wait in it for the slow one, and none is named.

    Reference: Jiang et al., MegaScale (arXiv:2402.15627)
    """

    times: ClassVar[float] = 2.0
    """Minimum ratio to the median of the other ranks."""
    seconds: ClassVar[float] = 0.02
    """Minimum difference from it."""
    in_a_row: ClassVar[int] = 5
    """Number of comparisons in a row."""

    kind = "straggler"
    noun = "a straggler"
    plural = "stragglers"
    order = 1170
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.PROFILE_DATA_LOADER_OF_RANK),
        Remedy(Action.LOOK_FOR_OTHER_PROCESSES_OF_RANK),
        Remedy(Action.CHECK_CLOCK_OF_RANK),
    )
