"""What many runs have in common: seeds, survival, sensitivity, and what is associated with instability."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with what chance leaves open."""

    value: float
    low: float | None = None
    high: float | None = None
    """95 %; None where there are too few values for it."""


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Runs whose parameters are equal but for the seed."""

    label: str
    """What tells it from the other groups: ``lr=0.003, warmup=0``."""
    sources: tuple[str, ...]
    unstable: int
    lost: int
    final_loss: Interval | None = None
    """The interquartile mean over seeds, a lost run counting as infinitely bad and one that was stopped early not at
    all; None where no run has a loss."""
    best_loss: Interval | None = None
    p_value: float | None = None
    """Of the final loss against the best group's, corrected for many tests and for its being chosen as the best; None
    under three seeds in either."""


@dataclass(frozen=True, slots=True)
class SurvivalCurve:
    """The share of runs not lost yet, over steps."""

    label: str
    runs: int
    lost: int
    steps: tuple[int, ...] = ()
    """After how many steps the share falls."""
    shares: tuple[float, ...] = ()
    """From there on."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """95 %."""
    last_step: int = 0
    """How many steps the longest of its runs made."""
    p_value: float | None = None
    """Log-rank against all other runs, corrected for many tests; None under three runs on either side."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How the final loss depends on the learning rate."""

    param: str
    """Where the rate was read."""
    rates: tuple[float, ...]
    """In rising order."""
    losses: tuple[float, ...]
    """For each the mean final loss; a lost run counts with the loss that it began with."""
    unstable: tuple[float, ...]
    """For each the share of runs that were unstable."""
    runs: tuple[int, ...]
    best_rate: float
    highest_stable: float | None
    """The highest rate up to which no run was unstable; None where there is none."""
    sensitivity: float
    """The mean over rates of how far the loss lies above the best one (arXiv:2309.14322, section 2.2)."""


@dataclass(frozen=True, slots=True)
class Association:
    """A parameter that is associated with instability. That it causes it cannot be seen from runs alone."""

    params: tuple[str, ...]
    """Several where the runs cannot tell them apart."""
    statement: str
    """What goes with what, with counts."""
    p_value: float
    """Corrected for many tests."""
    correlation: float | None = None
    """Spearman's, for a number."""
    given: tuple[str, ...] = ()
    """The parameters beside which it was seen: among runs that are alike in these."""
    split: float | None = None
    """The value that parts its runs best, for a number."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A shallow tree that tells unstable runs from stable ones by their parameters."""

    rules: tuple[str, ...]
    """``lr above 0.003 and warmup is 0: 41 of 45 runs unstable``."""
    accuracy: float
    """Of guesses about runs that it had not seen, nor any repetition of them."""
    baseline: float
    """The accuracy of always saying what most runs are."""
    better: bool
    """Whether it is clearly better than that."""


@dataclass(frozen=True, slots=True)
class ParamPlot:
    """For each run the value of a parameter and its outcome, to draw."""

    param: str
    values: tuple[float, ...]
    labels: tuple[str, ...]
    """For words in place of numbers: what each value stands for; empty for numbers."""
    unstable: tuple[bool, ...]
    losses: tuple[float | None, ...]
    named: bool = False
    """Whether it is associated with instability."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """All of it."""

    runs: int
    unstable: int
    groups: tuple[SeedGroup, ...] = ()
    survival: tuple[SurvivalCurve, ...] = ()
    sensitivity: Sensitivity | None = None
    associations: tuple[Association, ...] = ()
    tree: Tree | None = None
    plots: tuple[ParamPlot, ...] = ()
    tested: tuple[str, ...] = ()
    """The parameters that were looked at."""
    undecided: bool = False
    """Whether too few runs or settings keep a parameter from being named; `cannot_tell` says which."""
    confounded: tuple[str, ...] = ()
    """Warnings about parameters that move together."""
    cannot_tell: tuple[str, ...] = ()
    """What could not be told, and why: mostly that there are too few runs."""
