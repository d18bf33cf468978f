"""Why a finding came about, as far as the run shows it."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.result.remedy import Remedy


@dataclass(frozen=True, slots=True)
class Cause:
    """Why it began, as far as the run shows."""

    name: str
    """A word for programs: ``learning_rate_too_high``, ``bad_batch``, ``overflow``."""
    statement: str
    """A sentence for people, with numbers."""
    evidence: tuple[str, ...] = ()
    """What speaks for it, each with numbers."""
    ruled_out: tuple[str, ...] = ()
    """What was shown not to be it, and how: "learning rate: constant at 3e-4, the loss fell at it"."""
    not_checked: tuple[str, ...] = ()
    """What may be it all the same, for want of data: "gradient norm: not logged"."""
    certainty: str = "likely"
    """``certain``: seen directly; ``likely``: what came before it points there, and what would look the same was ruled
    out; ``possible``: other causes would look like this too."""
    place: str = ""
    """The module where it began, where that is known."""
    kind: str = ""
    """The kind of the finding that it explains: ``nan_detected``."""
    step: int | None = None
    """The first step of that finding."""
    since: int | None = None
    """From which step on its evidence is seen: never after what it explains began, of a plateau within its first third;
    None for what has no step of its own."""
    remedies: tuple[Remedy, ...] = ()
    """What goes against it, where more is known than its name; empty: what goes against all causes of this name."""
    ruled_out_causes: tuple[str, ...] = ()
    """The names of the causes that were shown not to be it."""
    repeats: tuple[tuple[str, int], ...] = ()
    """Type and step of reported findings whose sentences are part of the statement or the evidence."""

    def is_same(self, other: Cause) -> bool:
        """Whether both are shown as the same, whichever findings they explain."""
        return (self.name, self.statement) == (other.name, other.statement)

    @property
    def certain(self) -> bool:
        """Whether it was seen directly."""
        return self.certainty == "certain"
