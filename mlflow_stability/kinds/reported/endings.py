"""Findings about how a training ends or hangs, lines of a log about it, and what its representations came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType, Symptom
from mlflow_stability.vocabulary.facts import Facts, TextEnum
from mlflow_stability.vocabulary.result import Action, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted, how_process_ended


@dataclass(frozen=True, slots=True)
class EndFacts(Facts):
    """A process that crashed, was killed or ran out of memory."""

    kind = "process_end"

    outcome: str  # ``crashed``, ``exited``, ``killed`` or ``out_of_memory``
    detail: str = ""  # The exception, the exit status or the signal

    def sentence(self, step: int, unit: str = "step", /) -> str:
        detail = f": {self.detail.removesuffix('.')}" if self.detail else ""
        return f"{how_process_ended(self.outcome)} after {unit} {step}{detail}."


class StallEnd(TextEnum):
    NONE = "none"  # nothing yet
    CONTINUED = "continued"  # the next step
    ENDED = "ended"  # the end of the training


@dataclass(frozen=True, slots=True)
class StallFacts(Facts):
    kind = "stall"
    metrics = ("seconds",)

    seconds: float  # How long no step came, in seconds; while none has come yet, the threshold
    ended: StallEnd = StallEnd.NONE  # What came after it
    usual_seconds: float | None = None  # The usual time of a step, in seconds; None where it is not known

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
    kind = "job_restarted"
    metrics = ("attempt",)

    attempt: int  # The attempt that begins, from 1
    restarts_allowed: int  # How often the launcher starts it again at most

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

    When it is wrong: a user stopped it on purpose.

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
    FINDING = "finding"  # it names a type of finding
    SKIPPED = "skipped"  # a step was skipped
    STOPPED = "stopped"  # the script stops because a number is not finite
    ENDED = "ended"  # the process ends


@dataclass(frozen=True, slots=True)
class LogLineFacts(Facts):
    """A line of a log that tells something in words."""

    kind = "log_line"
    metrics = ("line", "loss_scale", "sdr_unique_ratio")

    says: LogSays  # What it is about
    text: str  # The line
    after_step: int  # The last step before it
    line: int | None = None  # Its number in the log, from 1; None where the log has no lines
    went_on: bool = False  # Whether training went on after it
    outcome: str = ""  # How the process ended, where that is what it says
    names_nan: bool = False  # Whether it names NaN
    names_not_finite: bool = False  # Whether it names numbers that are not finite: NaN, infinities or both
    loss_scale: float | None = None  # The loss scale that it names
    sdr_unique_ratio: float | None = None  # The share of unique codes that it names

    @property
    def is_end(self) -> bool:
        """Whether the script stopped for good because of a non-finite number."""
        return self.says is LogSays.STOPPED and not self.went_on

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        place = "The log" if self.line is None else f"Line {self.line:,} of the log"
        if self.says is LogSays.ENDED:
            ended = f"{how_process_ended(self.outcome)} after {unit} {self.after_step}, and continued or was restarted"
            return f"{ended}. {place}: {self.text}"
        continued = " It continued afterwards." if self.says is LogSays.STOPPED and self.went_on else ""
        return f"{place} says after {unit} {self.after_step}: {self.text}{continued}"


OF_CODES, OF_ROWS = "sdr_active_bits", "effective_rank"
"""What is there at every measurement of codes, or of other representations."""
VERDICTS: Mapping[str, str] = {
    "sdr_collapse": "codes collapsed",
    "representation_collapse": "representation collapsed",
    "sdr_low_diversity": "codes became more alike",
    "sdr_bit_usage": "most bits were not used",
    "sdr_temperature": "temperature diverged",
}
"""What warnings of each kind come to, the worst first."""


@dataclass(frozen=True, slots=True)
class RepresentationSummaryFacts(Facts):
    """What was measured of the representations of one module in a whole training."""

    kind = "representation_summary"

    module: str  # The module
    measurements: int  # Number of measurements
    means: tuple[tuple[str, float], ...]  # Each quantity with its mean
    last: tuple[tuple[str, float], ...]  # Each quantity with its last value
    warnings: int = 0  # Number of warnings about the module
    worst: str = ""  # The worst kind of these warnings; empty: there was none
    worst_since: int | None = None  # The step of the first warning of that kind

    @property
    def last_unique_ratio(self) -> float | None:
        """Share of unique codes at the end; None for representations that are no codes."""
        return dict(self.last).get("sdr_unique_ratio")

    def numbers(self) -> dict[str, float]:
        numbers = {**dict(self.means), "measurements": float(self.measurements), "warnings": float(self.warnings)}
        unique = self.last_unique_ratio
        return numbers if unique is None else {**numbers, "last_unique_ratio": unique}

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        means = dict(self.means)
        what = "Codes" if OF_CODES in means else "Representations"
        if OF_CODES in means:
            parts = ", ".join(self._of_codes(means))
        else:
            last = dict(self.last).get(OF_ROWS, 0.0)
            parts = (
                f"effective rank {means.get(OF_ROWS, 0.0):.1f} ({last:.1f} at the end), stable rank "
                f"{means.get('stable_rank', 0.0):.1f}, mean cosine similarity {means.get('mean_cosine', 0.0):.2f}"
            )
        averages = f"{what} of {self.module}, averages of {counted(self.measurements, 'measurement')}: {parts}."
        if not self.worst:
            return f"{averages} Verdict: healthy, no warnings."
        since = f"first seen at {unit} {self.worst_since}; {counted(self.warnings, 'warning')}"
        return f"{averages} Verdict: {VERDICTS[self.worst]}, {since}."

    def _of_codes(self, means: Mapping[str, float]) -> Sequence[str]:
        last, active = dict(self.last), means[OF_CODES]
        unique_at_end = self.last_unique_ratio or 0.0
        width = means.get("sdr_width", 0.0)
        parts = [
            f"{means.get('sdr_unique_ratio', 0.0):.1%} unique patterns ({unique_at_end:.1%} at the end)",
            f"active bits {active:.1f}/{width:.0f} ({active / max(width, 1.0):.1%})",
            f"{means.get('sdr_bit_usage', 0.0):.1%} of the bits used",
            f"entropy of the duty cycles {means.get('sdr_duty_entropy', 0.0):.2f}",
            f"overlap {means.get('sdr_overlap', 0.0):.2f} ({means.get('sdr_overlap_expected', 0.0):.2f} by chance)",
        ]
        if "sdr_temperature" in means:
            parts.append(
                f"temperature {means['sdr_temperature']:.3g} ({last.get('sdr_temperature', 0.0):.3g} at the end)"
            )
        return parts


@dataclass(frozen=True, slots=True)
class RepresentationSummary(FindingType):
    """The representations of a module, summarised at the end of the training.

    What it sees: once for each measured module: means over all measurements, the last values, the number of warnings,
    and a verdict.

    Why it matters: a collapse that came and went, or that was there from the start, is easily missed in single
    findings.

    What to try: read the findings of the same module, which say when it started.

    When it is wrong: a training that ended before there were three measurements has too little to summarise.

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    kind = "representation_summary"
    noun = "a summary of representations"
    plural = "summaries of representations"
    order = 1150
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.READ_FINDINGS_OF_MODULE),)
