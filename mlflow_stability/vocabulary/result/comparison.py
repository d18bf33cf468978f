"""What is concluded about several runs next to each other."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.measured.layers_beside import LayersBeside
from mlflow_stability.vocabulary.result.cohort import Cohort
from mlflow_stability.vocabulary.result.severity import Severity
from mlflow_stability.vocabulary.run.run_card import RunCard
from mlflow_stability.vocabulary.text.notebook_page import ShownAsPage


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened, with what chance leaves open."""

    count: int
    steps: int
    per_10k: float
    """Per 10,000 steps."""
    low: float
    high: float
    """The exact 95 % interval of a Poisson rate, per 10,000 steps."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One run of a comparison."""

    card: RunCard
    spike_rate: Rate | None = None
    """Of loss spikes; None for a run without steps or without a loss."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A parameter or a tag that is not the same in all runs."""

    name: str
    values: tuple[str | None, ...]
    """For each run in the order of the comparison; None where it is not set."""
    is_tag: bool = False


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two runs part."""

    first: str
    second: str
    """The sources of the two, the stabler first."""
    metric: str
    """What they are compared by; empty where they have none in common."""
    common: int = 0
    """At how many steps both have a value."""
    same_seed: bool | None = None
    """Whether both name the same seed; None where one names none."""
    identical_until: int | None = None
    """The last step up to which every value is the same to the last digit; None where not even the first few are."""
    differs_at: int | None = None
    """The first step at which they differ at all; None where they never do."""
    parts_at: int | None = None
    """The first step at which they differ by more than their noise; None where they never do."""
    gap: float | None = None
    """By what share the second lies above the first, from there on for as long as it was looked at."""
    meets_at: int | None = None
    """Where they are together again, if they are at the end."""
    sentence: str = ""
    """All of it for people."""


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether one run is worse than the baseline."""

    source: str
    name: str
    passed: bool
    reasons: tuple[str, ...]
    """Why it fails, each a sentence with numbers; where it passes, what was looked at."""


@dataclass(frozen=True, slots=True)
class BaselineGate:
    """All runs against one."""

    baseline: str
    """Its source."""
    name: str
    verdicts: tuple[GateVerdict, ...]
    cannot_tell: tuple[str, ...] = ()
    """What could not be held against it, and why."""

    @property
    def passed(self) -> bool:
        """Whether none is worse."""
        return all(each.passed for each in self.verdicts)


@dataclass(frozen=True, slots=True)
class Comparison(ShownAsPage):
    """Several runs next to each other, the stablest first."""

    runs: tuple[Compared, ...] = ()
    """Those that could be read."""
    unread: tuple[RunCard, ...] = ()
    """Those of which nothing could be read; `error` says why."""
    summary: str = ""
    """One sentence about all of them."""
    differences: tuple[Difference, ...] = ()
    """Parameters and tags that are not the same in all runs."""
    first_difference: FirstDifference | None = None
    """Where two runs part; None for more than two."""
    layers: tuple[LayersBeside, ...] = ()
    """Of two runs, in their order: what both have by layer, or by attention head."""
    gate: BaselineGate | None = None
    """Whether each is worse than the baseline; None where none was named."""
    cohort: Cohort | None = None
    """What the runs have in common; None for fewer than three."""
    notes: tuple[str, ...] = ()
    """What else there is to know about the comparison."""
    asked: int = 0
    """How many runs were asked for; more than there are here if it was interrupted."""
    interrupted: bool = False
    """Whether Ctrl-C ended the reading early."""

    def __repr__(self) -> str:
        unread = f", {len(self.unread)} not readable" if self.unread else ""
        return f"<Comparison of {len(self.runs)} runs{unread}: {self.summary}>"

    @property
    def cards(self) -> tuple[RunCard, ...]:
        """The runs without what was counted of them."""
        return tuple(each.card for each in self.runs)

    @property
    def severity(self) -> Severity:
        """The worst of all runs."""
        return max((each.card.severity for each in self.runs), default=Severity.INFO)
