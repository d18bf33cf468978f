"""Findings about one of several ranks that train together."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import CLIP_GRADIENTS, Action, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import sigmas

SPIKE_THRESHOLD = LossSpike().threshold  # σ from which a rank's own loss is a spike
MAX_NAMED = 8  # number of ranks that a sentence names


@dataclass(frozen=True, slots=True)
class RankFacts(Facts):
    @abstractmethod
    def heading(self, step: int, /) -> str:
        """Return what happened and where, without a full stop."""


@dataclass(frozen=True, slots=True)
class FirstRanksFacts(RankFacts):
    names: tuple[str, ...]  # The ranks, such as ``rank 3``
    ranks: int  # Number of these ranks
    of_ranks: int  # Number of all ranks
    first_rank: int  # Number of the first of them, or of the rank with the largest jump

    @property
    def _where(self) -> str:
        return ", ".join(self.names[:MAX_NAMED])

    @property
    def is_everywhere(self) -> bool:
        return self.ranks == self.of_ranks


@dataclass(frozen=True, slots=True)
class RankNonfiniteFacts(FirstRanksFacts):
    kind = "rank_nonfinite"
    metrics = ("ranks", "first_rank")

    def heading(self, step: int, /) -> str:
        return f"Non-finite loss first on {self._where} at step {step}"

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        others = "on all ranks" if self.is_everywhere else "the other ranks were finite"
        return f"{self.heading(step)}; {others} at that step."


@dataclass(frozen=True, slots=True)
class RankSpikeFacts(FirstRanksFacts):
    kind = "rank_spike"
    metrics = ("ranks", "first_rank", "loss", "level", "z", "limit")

    rank: str  # The rank with the largest jump
    loss: float  # Its loss, in the unit of the loss
    level: float  # Its loss just before, in the unit of the loss
    z: float  # How far the loss is above that, in σ of its noise
    limit: float  # Threshold in σ for a spike on one of `of_ranks` ranks

    def heading(self, step: int, /) -> str:
        return f"Loss spike first on {self._where} at step {step}"

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        others = "on all ranks" if self.is_everywhere else "no spike on the other ranks"
        return (
            f"{self.heading(step)}; {others} at that step. Loss {self.loss:.4g} on {self.rank}, {sigmas(self.z)} above "
            f"its baseline of {self.level:.4g} (threshold {self.limit:.3g}σ where it is on one of {self.of_ranks} "
            "ranks)."
        )


@dataclass(frozen=True, slots=True)
class WaitFacts(RankFacts):
    metrics = ("seconds", "level", "rank")

    name: str  # The rank, such as ``rank 3``
    rank: int  # Its number
    seconds: float  # The time that it took, in seconds
    level: float  # The time that is usual, in seconds
    times: float  # Threshold: this many times the usual time

    @property
    def _ratio(self) -> float:
        return self.seconds / max(self.level, 1e-9)


@dataclass(frozen=True, slots=True)
class RankSlowStepFacts(WaitFacts):
    kind = "rank_slow_step"

    def heading(self, step: int, /) -> str:
        return (
            f"{self.name.capitalize()} took {self.seconds:.3g} s before its backward pass at step {step}, "
            f"{self._ratio:.3g} times its usual {self.level:.3g} s (threshold {self.times:g} times)"
        )

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        return f"{self.heading(step)}; the other ranks waited."


@dataclass(frozen=True, slots=True)
class StragglerFacts(WaitFacts):
    kind = "straggler"

    in_a_row: int  # Threshold: number of comparisons in a row

    def heading(self, step: int, /) -> str:
        return (
            f"{self.name.capitalize()} takes {self.seconds:.3g} s before its backward pass at step {step}, "
            f"{self._ratio:.3g} times the {self.level:.3g} s of the other ranks (threshold {self.times:g} times, "
            f"{self.in_a_row} comparisons in a row)"
        )

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        return f"{self.heading(step)}."


@dataclass(frozen=True, slots=True)
class RankDiedFacts(Facts):
    kind = "rank_died"
    metrics = ("seconds_before", "ranks")

    names: tuple[str, ...]  # These ranks, such as ``rank 3``, the first that ended first
    ranks: int  # Number of these ranks
    at: str  # When the first ended: ``12:03:44 UTC``
    seconds_before: float  # How long before rank 0, in seconds; 0 where that is not known

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        names = ", ".join(self.names)
        before = f", {self.seconds_before:.2g} s before rank 0" if self.seconds_before else ""
        return f"{names[:1].upper()}{names[1:]} ended first: after step {step}, at {self.at}{before}."


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
    remedies = (Remedy(Action.INSPECT_BATCH_OF_RANK), Remedy(Action.CHECK_HOST_OF_RANK))


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
    remedies = (Remedy(Action.READ_LOG_OF_RANK), Remedy(Action.CHECK_KERNEL_LOG_OF_RANK))


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
    loss of all ranks: at least {SPIKE_THRESHOLD}σ times the square root of the number of ranks.

    Why it matters: the gradient of that batch reaches all ranks. Only rank 0 records its loss, so a bad batch of
    another rank is not in the curve of the loss.

    What to try: inspect the batch of that rank at that step; clip gradients; check that host for hardware
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
    remedies = (Remedy(Action.INSPECT_BATCH_OF_RANK), CLIP_GRADIENTS, Remedy(Action.CHECK_HOST_OF_RANK))


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

    times: ClassVar[float] = 5.0  # minimum ratio to the usual time of that rank
    seconds: ClassVar[float] = 0.5  # minimum difference from it

    kind = "rank_slow_step"
    noun = "a step that one rank made longer"
    plural = "steps that one rank made longer"
    order = 1165
    severities = (Severity.INFO,)
    experimental = True
    remedies = (Remedy(Action.LOOK_FOR_WORK_OF_RANK), Remedy(Action.PROFILE_DATA_LOADER_OF_RANK))


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

    times: ClassVar[float] = 2.0  # minimum ratio to the median of the other ranks
    seconds: ClassVar[float] = 0.02  # minimum difference from it
    in_a_row: ClassVar[int] = 5  # number of comparisons in a row

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
