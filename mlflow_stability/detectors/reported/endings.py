"""The kinds of trouble that are seen from outside of the series: how a training stops, or hangs.

Nothing here looks at points. The courier and the session see these; what is known of each kind stands here, in the
same words and sections as that of every judgement, so that it is explained in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.detectors.engine.finding_type import FindingType
from mlflow_stability.vocabulary.result.event import Severity


@dataclass(frozen=True, slots=True)
class Stall(FindingType):
    """The training hangs: no step has come for a long time.

    What it sees: no step for 10 times the usual time of one, and for 60 seconds at least, while the process lives.

    Why it matters: a hung training pays for its machines and does nothing; nobody notices until somebody looks.

    What to try: look where it waits (py-spy dump); look for a rank that died, a data loader worker that died, a full
    disk, a file system that is away.

    When it is wrong: long evaluations or checkpoints between two steps.

    Reference: https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """

    kind = "stall"
    noun = "a stall"
    plural = "stalls"
    order = 1010
    severities = (Severity.CRITICAL,)
    remedies = (
        "Look where it waits: py-spy dump --pid PID.",
        "Look for a rank or a data loader worker that has died.",
        "Look at the disk and the network file system.",
    )


@dataclass(frozen=True, slots=True)
class Crashed(FindingType):
    """The training ended with an exception, or with an exit status that says so.

    What it sees: an exception that nobody caught, or `sys.exit` with a status other than 0.

    Why it matters: the run did not reach its end; what it had learnt since the last checkpoint is gone.

    What to try: read the last line of the traceback; go on from the last good checkpoint.

    When it is wrong: scripts that leave by an exception on purpose, such as one that stops a search early.

    Reference: https://docs.python.org/3/library/sys.html#sys.excepthook
    """

    kind = "crashed"
    noun = "a crash"
    plural = "crashes"
    order = 1020
    severities = (Severity.CRITICAL,)
    remedies = (
        "Read the last line of the traceback.",
        "Go on from the last good checkpoint.",
    )


@dataclass(frozen=True, slots=True)
class Killed(FindingType):
    """The training was killed from outside.

    What it sees: a process that is gone without a word, or that a signal ended.

    Why it matters: the run did not reach its end; its last steps are recorded, but nobody says why it stopped.

    What to try: look at the job's time limit; look at the kernel's log for the out-of-memory killer; ask the
    scheduler whether the node was taken back.

    When it is wrong: somebody stopped it on purpose.

    Reference: https://man7.org/linux/man-pages/man7/signal.7.html
    """

    kind = "killed"
    noun = "a kill"
    plural = "kills"
    order = 1030
    severities = (Severity.CRITICAL,)
    remedies = (
        "Look at the job's time limit and at the scheduler's log.",
        "Look at the kernel's log for the out-of-memory killer.",
    )


@dataclass(frozen=True, slots=True)
class OutOfMemory(FindingType):
    """The training ran out of memory, on the device or on the host.

    What it sees: an error of the allocator that nobody caught, or a process that the kernel killed for its memory.

    Why it matters: the run did not reach its end, and the same batch will end it again.

    What to try: a smaller batch with accumulation; activation checkpointing; shorter sequences; look for tensors that
    are kept from step to step, such as losses summed up without `.item()`.

    When it is wrong: a guess from the words of an error, where the error is of the script's own making.

    Reference: https://docs.pytorch.org/docs/stable/notes/faq.html
    """

    kind = "out_of_memory"
    noun = "a lack of memory"
    order = 1040
    severities = (Severity.CRITICAL,)
    remedies = (
        "Take a smaller batch and accumulate gradients.",
        "Use activation checkpointing, or shorter sequences.",
        "Look for tensors that are kept from step to step.",
    )


WAYS_TO_END: tuple[type[Stall | Crashed | Killed | OutOfMemory], ...] = (Stall, Crashed, Killed, OutOfMemory)
"""Those that are seen from outside."""
