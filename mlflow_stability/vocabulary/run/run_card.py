"""One run condensed to what a comparison of many needs, small enough to keep a thousand of them in memory.

Writes a run's card as one line of JSON and reads it back: for a cache on disk, for a process that works for us.

In: a `RunCard`, or the text of one. Out: the other. Guarantees: what comes back is equal to what went in, infinities
and not-a-numbers included; a text that is no card is a ``ValueError``, whatever is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mlflow_stability.vocabulary.result.diagnosis import Sketch
from mlflow_stability.vocabulary.result.severity import Severity

LOST = frozenset({"diverged", "broken"})
"""The outcomes of a training that never came back from its trouble."""
OF_THE_PROCESS = frozenset({"crashed", "killed", "out_of_memory", "exited", "interrupted", "stall"})
"""Ends of a process and kinds of findings that say nothing about how stable the training was."""
STEADY = frozenset({"plateau", "overfitting"})
"""Kinds of findings about a training that learns too little, or too much, and is steady all the same."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An episode, as a strip of episodes shows it."""

    kind: str
    severity: Severity
    start: int
    end: int
    recovered: bool | None = None


@dataclass(frozen=True, slots=True)
class LossLevels:
    """The level of a loss in at most about two hundred blocks, and how much such a level varies by chance."""

    steps: tuple[int, ...]
    """The first step of each block."""
    levels: tuple[float, ...]
    """The median of each block, in the units of the loss."""
    noise: float
    """The standard deviation of one level around the course: a share of it where `logarithmic`, else in its units."""
    logarithmic: bool = True


@dataclass(frozen=True, slots=True)
class RunCard:
    """What is known of one run, next to others."""

    source: str
    """The run id or path that it was asked for by."""
    name: str = ""
    format: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    outcome: str = "cannot_tell"
    """In the words of `Diagnosis.outcome`."""
    verdict: str = ""
    severity: Severity = Severity.INFO
    cause: str = ""
    """Why the outcome came about, as a word for programs; empty where that is not known."""
    cause_statement: str = ""
    """The same in a sentence."""
    cause_explains: str = ""
    """The finding that the cause explains, where that is not the first one: ``the NaN at step 600``."""
    ended: str = ""
    """How its process ended, where that is known."""
    first_step: int | None = None
    last_step: int | None = None
    every: int = 1
    """So many steps apart are the values of its loss."""
    marks: tuple[Mark, ...] = ()
    """Its episodes in order of time, INFO included."""
    onset: int | None = None
    """Where its first episode above INFO began that is about the training, not about its process."""
    divergence: int | None = None
    """Where the trouble began that it never came back from; None for a run that was not lost."""
    spikes_in_divergence: tuple[int, ...] = ()
    """The steps of loss spikes that are no episodes of their own, for they are part of a divergence."""
    rolled_back: int = 0
    """Steps that were undone by setting the training back."""
    skipped: int = 0
    """Steps that were thrown away."""
    loss: str = ""
    """The metric that its curve, first, final and best loss are of."""
    finite_share: float = 1.0
    """The share of its values that are numbers: a loss that is NaN cannot spike."""
    first_loss: float | None = None
    final_loss: float | None = None
    """The median of the last twentieth; not finite where the run ended so; None without a loss."""
    best_loss: float | None = None
    """The lowest level of any twentieth, so that one lucky batch does not count; where a divergence is told by a lower
    level that was held for less long, that one."""
    spike_score: float | None = None
    """Share of losses 7 sigma or more from the rolling mean of 1000, as OLMo 2 defines it; None below 1000 points."""
    steps_per_second: float | None = None
    overhead: float | None = None
    """The share of the training's time that was ours; None for runs that we did not record."""
    peak_learning_rate: float | None = None
    """The highest that was measured, of the first parameter group."""
    course: LossLevels | None = None
    sketch: Sketch | None = None
    """Its loss, small enough to draw."""
    notes: tuple[str, ...] = ()
    cannot_tell: tuple[str, ...] = ()
    error: str = ""
    """Why nothing could be read of it; then only `source` and `name` mean anything."""

    @property
    def readable(self) -> bool:
        """Whether anything is known of it."""
        return not self.error

    @property
    def lost(self) -> bool:
        """Whether the training never came back from its trouble."""
        return self.readable and self.outcome in LOST

    @property
    def steps(self) -> int:
        """How many steps it made, those before its first value included; 0 where no step is known.

        A log that has every hundredth step, the first at 100 and the last at 1000, is one of 1000 steps.
        """
        if self.first_step is None or self.last_step is None:
            return 0
        return min(self.last_step - self.first_step + self.every, self.last_step - min(self.first_step, 1) + 1)

    @property
    def troubles(self) -> tuple[Mark, ...]:
        """Its episodes above INFO that are about the training; a kill or a crash is about its process."""
        return tuple(each for each in self.marks if each.severity > Severity.INFO and each.kind not in OF_THE_PROCESS)

    @property
    def unstable(self) -> bool | None:
        """Whether the training had trouble; None where too little is known to say that it had none."""
        if self.lost or any(each.kind not in STEADY for each in self.troubles):
            return True
        return None if self.error or self.outcome == "cannot_tell" else False

    @property
    def state(self) -> str:
        """The one word that it is counted under: ``lost``, ``stuck``, ``unstable``, ``stable``, ``unclear``."""
        if self.lost:
            return "lost"
        if self.readable and self.outcome == "stuck":
            return "stuck"
        return {True: "unstable", False: "stable", None: "unclear"}[self.unstable]

    @property
    def spikes(self) -> tuple[Mark, ...]:
        """Its episodes of a loss spike above INFO."""
        return tuple(each for each in self.troubles if each.kind == "loss_spike")

    @property
    def spike_steps(self) -> tuple[int, ...]:
        """Where its loss spiked: on its own, or as part of a divergence."""
        return tuple(sorted({*(each.start for each in self.spikes), *self.spikes_in_divergence}))

    @property
    def recovery_steps(self) -> tuple[int, ...]:
        """For each episode that it came back from, how many steps that took."""
        return tuple(each.end - each.start for each in self.troubles if each.recovered)

    @property
    def wasted(self) -> int:
        """Steps that a rollback undid."""
        return self.rolled_back + self.skipped


_NAMES = {each.name for each in fields(RunCard)}


def text_of(card: RunCard) -> str:
    """The card as text."""
    return json.dumps(asdict(card), separators=(",", ":"))


def card_of(text: str) -> RunCard:
    """The card that a text was made of."""
    try:
        return _card(json.loads(text))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"Not a run card: {error!r}") from error


def _card(found: dict[str, Any]) -> RunCard:
    if set(found) != _NAMES:
        raise ValueError("Not a run card, or one of another version.")
    sketch, course = found["sketch"], found["course"]
    return RunCard(
        **{
            **found,
            "severity": Severity(found["severity"]),
            "marks": tuple(Mark(**{**each, "severity": Severity(each["severity"])}) for each in found["marks"]),
            "course": None if course is None else LossLevels(**_tuples(course)),
            "sketch": None if sketch is None else Sketch(**_tuples(sketch)),
            "spikes_in_divergence": tuple(found["spikes_in_divergence"]),
            "notes": tuple(found["notes"]),
            "cannot_tell": tuple(found["cannot_tell"]),
        }
    )


def _tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
