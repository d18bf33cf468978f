"""Facts about processes that train together: on which rank something began, and which one the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.text.phrases import sigmas

MAX_NAMED = 8
"""Number of ranks that a sentence names."""


@dataclass(frozen=True, slots=True)
class RankFacts(Facts):
    """What is known of some ranks beside the others."""

    def heading(self, step: int, /) -> str:
        """What happened and where, in a phrase without a full stop."""
        raise NotImplementedError(type(self).__name__)


@dataclass(frozen=True, slots=True)
class FirstRanksFacts(RankFacts):
    """The ranks on which something began."""

    names: tuple[str, ...]
    """The ranks, such as ``rank 3``."""
    ranks: int
    """Number of these ranks."""
    of_ranks: int
    """Number of all ranks."""
    first_rank: int
    """Number of the first of them, or of the one that is told about."""

    @property
    def _where(self) -> str:
        return ", ".join(self.names[:MAX_NAMED])

    @property
    def is_everywhere(self) -> bool:
        """Whether it began on all ranks."""
        return self.ranks == self.of_ranks


@dataclass(frozen=True, slots=True)
class RankNonfiniteFacts(FirstRanksFacts):
    """The loss became non-finite on some ranks first."""

    kind: ClassVar[str] = "rank_nonfinite"
    metrics: ClassVar[tuple[str, ...]] = ("ranks", "first_rank")

    def heading(self, step: int, /) -> str:
        """``Non-finite loss first on rank 3 at step 80``."""
        return f"Non-finite loss first on {self._where} at step {step}"

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Non-finite loss first on rank 3 at step 80; the other ranks were finite at that step.``"""
        others = "on all ranks" if self.is_everywhere else "the other ranks were finite"
        return f"{self.heading(step)}; {others} at that step."


@dataclass(frozen=True, slots=True)
class RankSpikeFacts(FirstRanksFacts):
    """The loss jumped on some ranks first."""

    kind: ClassVar[str] = "rank_spike"
    metrics: ClassVar[tuple[str, ...]] = ("ranks", "first_rank", "loss", "level", "z", "limit")

    rank: str
    """The rank with the largest jump."""
    loss: float
    """Its loss, in the unit of the loss."""
    level: float
    """Its loss just before, in the unit of the loss."""
    z: float
    """How far the loss is above that, in σ of its noise."""
    limit: float
    """Threshold in σ, where it is on one of so many ranks."""

    def heading(self, step: int, /) -> str:
        """``Loss spike first on rank 3 at step 80``."""
        return f"Loss spike first on {self._where} at step {step}"

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Loss spike first on rank 3 at step 80; no spike on the other ranks at that step. …``"""
        others = "on all ranks" if self.is_everywhere else "no spike on the other ranks"
        return (
            f"{self.heading(step)}; {others} at that step. Loss {self.loss:.4g} on {self.rank}, {sigmas(self.z)} above "
            f"its baseline of {self.level:.4g} (threshold {self.limit:.3g}σ where it is on one of {self.of_ranks} "
            "ranks)."
        )


@dataclass(frozen=True, slots=True)
class WaitFacts(RankFacts):
    """The time that one rank took before its backward pass."""

    metrics: ClassVar[tuple[str, ...]] = ("seconds", "level", "rank")

    name: str
    """The rank, such as ``rank 3``."""
    rank: int
    """Its number."""
    seconds: float
    """The time that it took, in seconds."""
    level: float
    """The time that is usual, in seconds."""
    times: float
    """Threshold: this many times the usual time."""

    @property
    def _ratio(self) -> float:
        return self.seconds / max(self.level, 1e-9)


@dataclass(frozen=True, slots=True)
class RankSlowStepFacts(WaitFacts):
    """One rank made all others wait at one step."""

    kind: ClassVar[str] = "rank_slow_step"

    def heading(self, step: int, /) -> str:
        """``Rank 3 took 8 s before its backward pass at step 80, 40 times its usual 0.2 s (threshold 5 times)``."""
        return (
            f"{self.name.capitalize()} took {self.seconds:.3g} s before its backward pass at step {step}, "
            f"{self._ratio:.3g} times its usual {self.level:.3g} s (threshold {self.times:g} times)"
        )

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """The heading, and that the others waited."""
        return f"{self.heading(step)}; the other ranks waited."


@dataclass(frozen=True, slots=True)
class StragglerFacts(WaitFacts):
    """One rank is slower than the others."""

    kind: ClassVar[str] = "straggler"

    in_a_row: int
    """Threshold: number of comparisons in a row."""

    def heading(self, step: int, /) -> str:
        """``Rank 3 takes 0.5 s before its backward pass at step 80, 2.5 times the 0.2 s of the other ranks …``."""
        return (
            f"{self.name.capitalize()} takes {self.seconds:.3g} s before its backward pass at step {step}, "
            f"{self._ratio:.3g} times the {self.level:.3g} s of the other ranks (threshold {self.times:g} times, "
            f"{self.in_a_row} comparisons in a row)"
        )

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """The heading, as a sentence."""
        return f"{self.heading(step)}."


@dataclass(frozen=True, slots=True)
class RankDiedFacts(Facts):
    """The processes of other ranks ended before this one."""

    kind: ClassVar[str] = "rank_died"
    metrics: ClassVar[tuple[str, ...]] = ("seconds_before", "ranks")

    names: tuple[str, ...]
    """These ranks, such as ``rank 3``, the first that ended first."""
    ranks: int
    """Number of these ranks."""
    at: str
    """When the first ended: ``12:03:44 UTC``."""
    seconds_before: float
    """How long before rank 0, in seconds; 0 where that is not known."""

    def sentence(self, step: int, _unit: str = "step", /) -> str:
        """``Rank 3 ended first: after step 80, at 12:03:44 UTC, 2.1 s before rank 0.``"""
        names = ", ".join(self.names)
        before = f", {self.seconds_before:.2g} s before rank 0" if self.seconds_before else ""
        return f"{names[:1].upper()}{names[1:]} ended first: after step {step}, at {self.at}{before}."
