"""What is concluded about several runs: differences, the comparison with a baseline, statistics of many runs."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.measured.layer_comparison import LayerComparison
from mlflow_stability.vocabulary.result.diagnosis import ShownAsPage
from mlflow_stability.vocabulary.result.finding import Severity
from mlflow_stability.vocabulary.result.run_card import RunCard


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float | None = None
    high: float | None = None  # 95 %; None where there are too few values for it


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs whose parameters are equal but for the seed."""

    label: str  # parameters that distinguish it from the other groups: ``lr=0.003, warmup=0``
    sources: tuple[str, ...]
    unstable: int
    lost: int
    final_loss: Interval | None = None
    """Interquartile mean over seeds. A lost run counts as infinitely bad, one that was stopped early is left out; None
    where no run has a loss."""
    best_loss: Interval | None = None
    p_value: float | None = None
    """Of the final loss against that of the best group, corrected for multiple tests and for choosing the best; None
    below three seeds in either."""


@dataclass(frozen=True, slots=True)
class SurvivalCurve:
    """Share of runs that are not lost yet, over steps."""

    label: str
    runs: int
    lost: int
    steps: tuple[int, ...] = ()  # after how many steps the share falls
    shares: tuple[float, ...] = ()  # from there on
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()  # 95 %
    last_step: int = 0  # steps of its longest run
    p_value: float | None = None
    """Log-rank test against all other runs, corrected for multiple tests; None below three runs on either side."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How the final loss depends on the learning rate."""

    param: str  # where the rate was read
    rates: tuple[float, ...]  # in rising order
    losses: tuple[float, ...]  # for each the mean final loss; a lost run counts with the loss that it began with
    unstable: tuple[float, ...]  # for each the share of runs that were unstable
    runs: tuple[int, ...]
    best_rate: float
    highest_stable: float | None  # the highest rate up to which no run was unstable; None where the lowest had one
    sensitivity: float  # mean over rates of the loss above the best one (arXiv:2309.14322, section 2.2)


@dataclass(frozen=True, slots=True)
class Association:
    """A parameter that is associated with instability, which does not show that it is the cause."""

    params: tuple[str, ...]  # several where the runs cannot tell them apart
    statement: str  # the association in words, with counts
    p_value: float  # corrected for many tests
    correlation: float | None = None  # Spearman's, for a number
    given: tuple[str, ...] = ()  # parameters that were held constant: the runs that are compared are alike in these
    split: float | None = None  # the value that separates its runs best, for a number


@dataclass(frozen=True, slots=True)
class ParamPlot:
    """The value of a parameter and the outcome of each run, for a plot."""

    param: str
    values: tuple[float, ...]
    labels: tuple[str, ...]  # words that the values stand for; empty for numbers
    unstable: tuple[bool, ...]
    losses: tuple[float | None, ...]
    named: bool = False  # whether it is associated with instability


@dataclass(frozen=True, slots=True)
class Cohort:
    """Statistics of many runs."""

    runs: int
    unstable: int
    groups: tuple[SeedGroup, ...] = ()
    survival: tuple[SurvivalCurve, ...] = ()
    sensitivity: Sensitivity | None = None
    associations: tuple[Association, ...] = ()
    plots: tuple[ParamPlot, ...] = ()
    tested: tuple[str, ...] = ()  # the parameters that were tested
    undecided: bool = False  # whether too few runs or settings keep a parameter from being named; see `cannot_tell`
    confounded: tuple[str, ...] = ()  # warnings about parameters that move together
    cannot_tell: tuple[str, ...] = ()  # what could not be determined, and why: mostly too few runs


@dataclass(frozen=True, slots=True)
class Rate:
    count: int
    steps: int
    per_10k: float  # per 10,000 steps
    low: float
    high: float  # the exact 95 % interval of a Poisson rate, per 10,000 steps


@dataclass(frozen=True, slots=True)
class Compared:
    card: RunCard
    spike_rate: Rate | None = None  # of loss spikes; None for a run without steps or without a loss


@dataclass(frozen=True, slots=True)
class Difference:
    """A parameter or a tag that is not the same in all runs."""

    name: str
    values: tuple[str | None, ...]  # for each run in the order of the comparison; None where it is not set
    is_tag: bool = False


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two runs begin to differ."""

    first: str
    second: str  # the sources of the two, the stabler first
    metric: str  # the metric that is compared; empty where they have none in common
    common: int = 0  # number of steps with a value in both
    same_seed: bool | None = None  # whether both name the same seed; None where one names none
    identical_until: int | None = None  # the last step up to which all values are identical; None without any
    differs_at: int | None = None  # the first step at which they differ at all; None where they never do
    parts_at: int | None = None  # the first step at which they differ by more than noise; None where they never do
    gap: float | None = None  # share by which the second is above the first, from there to the last compared step
    meets_at: int | None = None  # where they meet again, if they are together at the end
    sentence: str = ""  # the same in words


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether one run is worse than the baseline."""

    source: str
    name: str
    passed: bool
    reasons: tuple[str, ...]  # why it fails, each a sentence with numbers; where it passes, what was compared


@dataclass(frozen=True, slots=True)
class BaselineGate:
    """All runs against one."""

    baseline: str  # its source
    name: str
    verdicts: tuple[GateVerdict, ...]
    cannot_tell: tuple[str, ...] = ()  # what could not be compared with it, and why

    @property
    def passed(self) -> bool:
        """Whether no run is worse."""
        return all(verdict.passed for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class Comparison(ShownAsPage):
    """Several runs next to each other, the stablest first.

    Example:

        >>> from mlflow_stability import compare
        >>> comparison = compare(["mlruns_fixtures/0/loss_spike", "mlruns_fixtures/0/healthy"], remember=False)
        >>> [(run.card.name, run.card.state) for run in comparison.runs]
        [('healthy', 'stable'), ('loss_spike', 'unstable')]
    """

    runs: tuple[Compared, ...] = ()  # those that could be read
    unread: tuple[RunCard, ...] = ()  # those of which nothing could be read; `error` says why
    summary: str = ""  # one sentence about all of them
    differences: tuple[Difference, ...] = ()  # parameters and tags that are not the same in all runs
    first_difference: FirstDifference | None = None  # where two runs part; None for more than two
    layers: tuple[LayerComparison, ...] = ()  # of two runs: what both have by layer, or by attention head
    gate: BaselineGate | None = None  # whether each is worse than the baseline; None where none was named
    cohort: Cohort | None = None  # what the runs have in common; None for fewer than three
    notes: tuple[str, ...] = ()  # what else there is to know about the comparison
    asked: int = 0  # how many runs were asked for; more than there are here if it was interrupted
    interrupted: bool = False  # whether Ctrl-C ended the reading early

    def __repr__(self) -> str:
        unread = f", {len(self.unread)} not readable" if self.unread else ""
        return f"<Comparison of {len(self.runs)} runs{unread}: {self.summary}>"

    @property
    def cards(self) -> tuple[RunCard, ...]:
        """The runs without what was counted of them."""
        return tuple(run.card for run in self.runs)

    @property
    def severity(self) -> Severity:
        """The worst of all runs."""
        return max((run.card.severity for run in self.runs), default=Severity.INFO)
