"""Run cards: what a comparison needs of each run, small enough to keep thousands of them in memory.

Cards are written as JSON for a cache on disk and for worker processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mlflow_stability.vocabulary.result.diagnosis import Sketch
from mlflow_stability.vocabulary.result.finding import Severity

LOST_OUTCOMES = frozenset({"diverged", "broken"})  # outcomes of a training that never recovered
PROCESS_KINDS = frozenset({"crashed", "killed", "out_of_memory", "exited", "interrupted", "stall"})
"""Ends of a process and kinds of findings that do not concern the stability of the training."""
STEADY_KINDS = frozenset({"plateau", "overfitting"})
"""Kinds of findings about a training that learns too little or too much, but is stable."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An episode in a strip of episodes."""

    kind: str
    severity: Severity
    start: int
    end: int
    recovered: bool | None = None


@dataclass(frozen=True, slots=True)
class LossLevels:
    """The level of a loss in at most about 200 blocks, and its noise."""

    steps: tuple[int, ...]  # the first step of each block
    levels: tuple[float, ...]  # the median of each block, in the units of the loss
    noise: float  # standard deviation of one level: as a share of it where `logarithmic`, else in its units
    logarithmic: bool = True


@dataclass(frozen=True, slots=True)
class RunCard:
    source: str  # the run id or path, as it was asked for
    name: str = ""
    format: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    outcome: str = "cannot_tell"  # in the words of `Diagnosis.outcome`
    verdict: str = ""
    severity: Severity = Severity.INFO
    cause: str = ""  # name of the cause of the outcome; empty where it is unknown
    cause_statement: str = ""  # the same in a sentence
    cause_explains: str = ""  # the finding that the cause explains, unless it is the first: ``the NaN at step 600``
    ended: str = ""  # how its process ended; empty where that is unknown
    first_step: int | None = None
    last_step: int | None = None
    every: int = 1  # distance in steps between the values of its loss
    marks: tuple[Mark, ...] = ()  # its episodes in order of time, INFO included
    onset: int | None = None  # first step of the first episode above INFO that is about the training, not its process
    divergence: int | None = None  # first step of the trouble from which it never recovered; None if it was not lost
    spikes_in_divergence: tuple[int, ...] = ()  # steps of loss spikes that are no episodes of their own
    rolled_back: int = 0  # number of steps that rollbacks undid
    skipped: int = 0  # number of skipped steps
    loss: str = ""  # the metric of its curve, first, final and best loss
    finite_share: float = 1.0  # share of finite loss values: a loss that is NaN cannot spike
    first_loss: float | None = None
    final_loss: float | None = None  # median of the last 5 %; not finite where the run ended so; None without a loss
    best_loss: float | None = None
    """Lowest level of any 5 % of the run, so that one lucky batch does not count; where a divergence states a lower
    level that was held for a shorter time, that one."""
    spike_score: float | None = None
    """Share of losses 7 sigma or more from the rolling mean of 1000, as OLMo 2 defines it; None below 1000 points."""
    steps_per_second: float | None = None
    overhead: float | None = None  # share of the training's time spent by this package; None if it was not recorded
    peak_learning_rate: float | None = None  # highest measured learning rate of the first parameter group
    course: LossLevels | None = None
    sketch: Sketch | None = None  # its loss, small enough to plot
    notes: tuple[str, ...] = ()
    cannot_tell: tuple[str, ...] = ()
    error: str = ""  # why the run could not be read; then only `source` and `name` are set

    @property
    def readable(self) -> bool:
        return not self.error

    @property
    def lost(self) -> bool:
        return self.readable and self.outcome in LOST_OUTCOMES

    @property
    def steps(self) -> int:
        """Number of steps, with those before its first value: 1000 for a log of 100, 200, …, 1000; 0 if unknown."""
        if self.first_step is None or self.last_step is None:
            return 0
        return min(self.last_step - self.first_step + self.every, self.last_step - min(self.first_step, 1) + 1)

    @property
    def troubles(self) -> tuple[Mark, ...]:
        """Its episodes above INFO that are about the training, not about its process."""
        return tuple(mark for mark in self.marks if mark.severity > Severity.INFO and mark.kind not in PROCESS_KINDS)

    @property
    def unstable(self) -> bool | None:
        """Whether the training had trouble; None where that cannot be determined."""
        if self.lost or any(mark.kind not in STEADY_KINDS for mark in self.troubles):
            return True
        return None if self.error or self.outcome == "cannot_tell" else False

    @property
    def state(self) -> str:
        """``lost``, ``stuck``, ``unstable``, ``stable`` or ``unclear``."""
        if self.lost:
            return "lost"
        if self.readable and self.outcome == "stuck":
            return "stuck"
        return {True: "unstable", False: "stable", None: "unclear"}[self.unstable]

    @property
    def spikes(self) -> tuple[Mark, ...]:
        """Its episodes of a loss spike above INFO."""
        return tuple(mark for mark in self.troubles if mark.kind == "loss_spike")

    @property
    def spike_steps(self) -> tuple[int, ...]:
        """Steps of its loss spikes, including those that are part of a divergence."""
        return tuple(sorted({*(mark.start for mark in self.spikes), *self.spikes_in_divergence}))

    @property
    def recovery_steps(self) -> tuple[int, ...]:
        """Length in steps of each episode from which it recovered."""
        return tuple(mark.end - mark.start for mark in self.troubles if mark.recovered)

    @property
    def wasted(self) -> int:
        """Number of steps that were rolled back or skipped."""
        return self.rolled_back + self.skipped


def card_to_json(card: RunCard) -> str:
    """Return the card as one line of JSON, which may have infinities and NaN."""
    return json.dumps(asdict(card), separators=(",", ":"))


def card_from_json(text: str) -> RunCard:
    """Read what `card_to_json` wrote; ValueError for any other text."""
    try:
        values = json.loads(text)
        if set(values) != {column.name for column in fields(RunCard)}:
            raise ValueError("Not a run card, or one of another version.")
        sketch, course = values["sketch"], values["course"]
        return RunCard(
            **{
                **values,
                "severity": Severity(values["severity"]),
                "marks": tuple(Mark(**{**mark, "severity": Severity(mark["severity"])}) for mark in values["marks"]),
                "course": None if course is None else LossLevels(**_with_tuples(course)),
                "sketch": None if sketch is None else Sketch(**_with_tuples(sketch)),
                **{name: tuple(values[name]) for name in ("spikes_in_divergence", "notes", "cannot_tell")},
            }
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"Not a run card: {error!r}") from error


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
