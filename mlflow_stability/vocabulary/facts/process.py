"""Facts about how a training process ends, hangs or begins again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum
from mlflow_stability.vocabulary.text import process_ended


@dataclass(frozen=True, slots=True)
class EndFacts(Facts):
    """A process that crashed, was killed or ran out of memory."""

    kind: ClassVar[str] = "process_end"

    outcome: str
    """``crashed``, ``exited``, ``killed`` or ``out_of_memory``."""
    detail: str = ""
    """The exception, the exit status or the signal."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``The process crashed after step 80: ValueError: …``"""
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

    kind: ClassVar[str] = "stall"
    metrics: ClassVar[tuple[str, ...]] = ("seconds",)

    seconds: float
    """How long no step came, in seconds; while none has come yet, the threshold."""
    ended: StallEnd = StallEnd.NONE
    """What came after it."""
    usual_seconds: float | None = None
    """The usual time of a step, in seconds; None where it is not known."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``No step for 130 s after step 80; then training continued.``"""
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

    kind: ClassVar[str] = "job_restarted"
    metrics: ClassVar[tuple[str, ...]] = ("attempt",)

    attempt: int
    """The attempt that begins, from 1."""
    restarts_allowed: int
    """How often the launcher starts it again at most."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Attempt 2 of the job: torchrun started it again (1 of at most 3 restarts).``"""
        times = f"{self.attempt - 1} of at most {self.restarts_allowed} restarts"
        return f"Attempt {self.attempt} of the job: torchrun started it again ({times})."
