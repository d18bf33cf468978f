"""Facts that a log tells in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum
from mlflow_stability.vocabulary.text.process_ended import process_ended


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

    kind: ClassVar[str] = "log_line"
    metrics: ClassVar[tuple[str, ...]] = ("line", "loss_scale", "sdr_unique_ratio")

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
        """Whether the script stopped for good because a number was not finite."""
        return self.says is LogSays.STOPPED and not self.went_on

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        """``Line 12 of the log says after step 40: Gradient overflow. Skipping step``."""
        place = "The log" if self.line is None else f"Line {self.line:,} of the log"
        if self.says is LogSays.ENDED:
            ended = f"{process_ended(self.outcome)} after {unit} {self.after_step}, and continued or was restarted"
            return f"{ended}. {place}: {self.text}"
        said = f"{place} says after {unit} {self.after_step}: {self.text}"
        return f"{said} It continued afterwards." if self.says is LogSays.STOPPED and self.went_on else said
