"""Everything that is known of one run, whoever recorded it: what a diagnosis is made from.

A run of our own, anybody's MLflow run and a log file all become this. Steps are those of the source; where they go back
(a restart, several runs in one file) the attempt rises, so that within an attempt a series is a function of its step.

What a tracking store says of a run without its metrics' histories: enough to know whether it is known already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.observation import Series
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.run.milestone import Gap
from mlflow_stability.vocabulary.text.metric_names import Meaning

DAMAGED = "Some of what was recorded cannot be read and is missing here"
"""A note on a history begins so where that holds: what is concluded from it may be otherwise the next time."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric under the name that its script gave it, what we take it for, and its values."""

    name: str
    """As it was logged; may hold anything, so whoever shows it makes it harmless first."""
    meaning: Meaning
    series: Series
    """Oldest first; `series.signal` is `meaning.signal`. Not-a-number stands only where the run really logged it."""
    lines: NDArray[np.int64] | None = None
    """The line of the log in which each value stands, counted from 1; None where there are none."""
    of_the_script: bool = False
    """Whether the script logged it beside what was recorded, by a count of steps of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class RunHistory:
    """One run."""

    source: str
    """The run id or the path that it was asked for by; what the JSON calls `source`."""
    name: str
    """What people call it: the run's name, the file's name."""
    format: str
    """``recorded``, ``mlflow``, or the name of the file format: ``lightning_csv``."""
    basis: str
    """What was read, as a person would say it: "the full record (12,000 steps)"."""
    metrics: tuple[Metric, ...] = ()
    events: tuple[Finding, ...] | None = None
    """What was judged while it trained; None where nothing of ours judged it."""
    gaps: tuple[Gap, ...] = ()
    outcome: str = ""
    """How it ended, in the words of `outcome.RUN_STATUS`; ``running``; empty where nobody can know."""
    outcome_detail: str = ""
    """The exception, the signal, the exit status."""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What is odd about the source: "5 runs in one file", "every step is 0, points are numbered instead"."""
    ordinal_steps: bool = False
    """Whether steps are only the order of the points, because the source has none."""
    step_unit: str = "step"
    """What a step is called in the source: ``epoch`` where that is all it counts."""
    choice: tuple[str, ...] = ()
    """Why these metrics are its loss and its validation loss, where names alone do not say it."""
    reported: tuple[Finding, ...] = ()
    """What the log itself says in words, with its step: ``step_skipped``; nothing here was judged by us."""
    complete: bool = True
    """Whether every value that was measured is here; False: thinned points, fit only for rules made for them."""

    @property
    def points(self) -> int:
        """How many values there are."""
        return sum(len(metric.series) for metric in self.metrics)

    def of(self, quantity: str) -> tuple[Metric, ...]:
        """The metrics that mean this quantity, the one of the whole model first."""
        found = [metric for metric in self.metrics if metric.meaning.quantity == quantity]
        return tuple(sorted(found, key=lambda metric: metric.meaning.place != ""))


@dataclass(frozen=True, slots=True)
class RunHead:
    """One run of a tracking store."""

    run_id: str
    name: str = ""
    finished: bool = False
    """Whether nothing more is expected of it."""
    state: str = ""
    """A digest of its store, how and when it ended, its parameters and tags, and the last point of every metric."""
