"""Findings about how a training ends or hangs, and what lines of a log say about it."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType, Symptom
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy, Severity
from mlflow_stability.vocabulary.text import process_ended


@dataclass(frozen=True, slots=True)
class EndFacts(Facts):
    """A process that crashed, was killed or ran out of memory."""

    kind = "process_end"

    outcome: str
    """``crashed``, ``exited``, ``killed`` or ``out_of_memory``."""
    detail: str = ""
    """The exception, the exit status or the signal."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        detail = f": {self.detail.removesuffix('.')}" if self.detail else ""
        return f"{process_ended(self.outcome)} after {unit} {step}{detail}."


class StallEnd(TextEnum):
    """What came after a long wait."""

    NONE = "none"
    """Nothing yet."""
    CONTINUED = "continued"
    """The next step."""
    ENDED = "ended"
    """The end of the training."""


@dataclass(frozen=True, slots=True)
class StallFacts(Facts):
    """No step for a long time."""

    kind = "stall"
    metrics = ("seconds",)

    seconds: float
    """How long no step came, in seconds; while none has come yet, the threshold."""
    ended: StallEnd = StallEnd.NONE
    """What came after it."""
    usual_seconds: float | None = None
    """The usual time of a step, in seconds; None where it is not known."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        if self.ended is StallEnd.NONE:
            return (
                f"No step for more than {self.seconds:.0f} s since {unit} {step} (usual step time "
                f"{self.usual_seconds:.3g} s). The process is still running."
            )
        after = "training continued" if self.ended is StallEnd.CONTINUED else "the training ended"
        return f"No step for {self.seconds:.0f} s after {unit} {step}; then {after}."


@dataclass(frozen=True, slots=True)
class RestartFacts(Facts):
    """A launcher started the job again."""

    kind = "job_restarted"
    metrics = ("attempt",)

    attempt: int
    """The attempt that begins, from 1."""
    restarts_allowed: int
    """How often the launcher starts it again at most."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        times = f"{self.attempt - 1} of at most {self.restarts_allowed} restarts"
        return f"Attempt {self.attempt} of the job: torchrun started it again ({times})."


@dataclass(frozen=True, slots=True)
class Stall(FindingType):
    """The training hangs: no step for a long time.

    What it sees: no step for 10 times the usual step time, and for at least 60 seconds, while the process lives.

    Why it matters: a hung training occupies its machines and achieves nothing.

    What to try: find where it waits (py-spy dump); check for a dead rank, a dead data-loader worker, a full disk, an
    unavailable file system.

    When it is wrong: long evaluations or checkpoints between two steps.

    Reference: https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """

    kind = "stall"
    noun = "a stall"
    plural = "stalls"
    question = "Did the training stall?"
    check_by_hand = "Run py-spy dump --pid PID while it waits; compare all ranks."
    symptom = Symptom.ENDED
    order = 1010
    severities = (Severity.CRITICAL,)
    remedies = (Remedy(Action.FIND_WHERE_IT_WAITS), Remedy(Action.CHECK_FOR_DEAD_WORKER), Remedy(Action.CHECK_DISK))


@dataclass(frozen=True, slots=True)
class Crashed(FindingType):
    """The training ended with an exception or a non-zero exit status.

    What it sees: an uncaught exception, or `sys.exit` with a status other than 0.

    Why it matters: the run did not finish; everything since the last checkpoint is lost.

    What to try: read the last line of the traceback; restart from the last good checkpoint.

    When it is wrong: scripts that end with an exception on purpose, such as one that stops a search early.

    Reference: https://docs.python.org/3/library/sys.html#sys.excepthook
    """

    kind = "crashed"
    noun = "a crash"
    plural = "crashes"
    symptom = Symptom.ENDED
    order = 1020
    severities = (Severity.CRITICAL,)
    remedies = (Remedy(Action.READ_TRACEBACK), Remedy(Action.RESTART_FROM_LAST_GOOD))


@dataclass(frozen=True, slots=True)
class Killed(FindingType):
    """The training process was killed.

    What it sees: a process that disappeared, or that a signal ended.

    Why it matters: the run did not finish. Its last steps are recorded, but not the reason.

    What to try: check the job's time limit; check the kernel log for the out-of-memory killer; check whether the
    scheduler preempted the node.

    When it is wrong: somebody stopped it on purpose.

    Reference: https://man7.org/linux/man-pages/man7/signal.7.html
    """

    kind = "killed"
    noun = "a kill"
    plural = "kills"
    symptom = Symptom.ENDED
    order = 1030
    severities = (Severity.CRITICAL,)
    remedies = (Remedy(Action.CHECK_TIME_LIMIT), Remedy(Action.CHECK_KERNEL_LOG))


@dataclass(frozen=True, slots=True)
class OutOfMemory(FindingType):
    """The training ran out of memory, on the device or on the host.

    What it sees: an uncaught allocator error, or a process that the kernel killed for its memory.

    Why it matters: the run did not finish, and the same batch will end it again.

    What to try: use a smaller batch with gradient accumulation; use activation checkpointing; use shorter sequences;
    look for tensors that are kept from step to step, such as losses summed without `.item()`.

    When it is wrong: an error whose words suggest it, but that the script itself raised.

    Reference: https://docs.pytorch.org/docs/stable/notes/faq.html
    """

    kind = "out_of_memory"
    noun = "a lack of memory"
    symptom = Symptom.ENDED
    order = 1040
    severities = (Severity.CRITICAL,)
    remedies = (
        Remedy(Action.ACCUMULATE_GRADIENTS),
        Remedy(Action.USE_CHECKPOINTING_OR_SHORTER),
        Remedy(Action.LOOK_FOR_KEPT_TENSORS),
    )


WAYS_TO_END: tuple[type[Stall | Crashed | Killed | OutOfMemory], ...] = (Stall, Crashed, Killed, OutOfMemory)
"""Those that are seen from outside."""


class LogSays(TextEnum):
    """What a line of a log is about."""

    FINDING = "finding"
    """It names a type of finding."""
    SKIPPED = "skipped"
    """A step was skipped."""
    STOPPED = "stopped"
    """The script stops because a number is not finite."""
    ENDED = "ended"
    """The process ends."""


@dataclass(frozen=True, slots=True)
class LogLineFacts(Facts):
    """A line of a log that tells something in words."""

    kind = "log_line"
    metrics = ("line", "loss_scale", "sdr_unique_ratio")

    says: LogSays
    """What it is about."""
    text: str
    """The line."""
    after_step: int
    """The last step before it."""
    line: int | None = None
    """Its number in the log, from 1; None where the log has no lines."""
    went_on: bool = False
    """Whether training went on after it."""
    outcome: str = ""
    """How the process ended, where that is what it says."""
    names_nan: bool = False
    """Whether it names NaN."""
    names_not_finite: bool = False
    """Whether it names numbers that are not finite: NaN, infinities or both."""
    loss_scale: float | None = None
    """The loss scale that it names."""
    sdr_unique_ratio: float | None = None
    """The share of unique codes that it names."""

    @property
    def is_end(self) -> bool:
        """Whether the script stopped for good because of a non-finite number."""
        return self.says is LogSays.STOPPED and not self.went_on

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        place = "The log" if self.line is None else f"Line {self.line:,} of the log"
        if self.says is LogSays.ENDED:
            ended = f"{process_ended(self.outcome)} after {unit} {self.after_step}, and continued or was restarted"
            return f"{ended}. {place}: {self.text}"
        continued = " It continued afterwards." if self.says is LogSays.STOPPED and self.went_on else ""
        return f"{place} says after {unit} {self.after_step}: {self.text}{continued}"
