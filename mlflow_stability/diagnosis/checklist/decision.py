"""Decides what to do about a trouble: skip, roll back, lower the rate, restart, or continue.

In: the branches of a checklist, in their order, and a run with the answers to its questions. Out: the first branch that
applies, with the run's own steps and rates; without a run all branches, as conditions. Guarantees: a rate or a step is
named only where the run recorded it; what has been done already is not asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.diagnosis.causes.learning_rate import jumps_in
from mlflow_stability.diagnosis.checklist.question import Case, State
from mlflow_stability.diagnosis.findings.attempt_span import FOR_EVER
from mlflow_stability.vocabulary.result import Action

Applies = Callable[[Case, Mapping[str, State]], bool]
EASED = 3.0
"""By so much a rate is lowered or raised where nothing says to which value."""
FIRST_STEPS = 10
"""Before a trouble that begins so early there is no state worth keeping."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One way to decide; ``do`` may hold ``{step}``, ``{checkpoint}``, ``{best}``, ``{lower}`` and ``{higher}``."""

    when: str
    do: str
    applies: Applies


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and when."""

    when: str
    """On what it depends; of a run, what was found."""
    do: str


def always(_case: Case, _states: Mapping[str, State]) -> bool:
    """Applies where nothing before it did."""
    return True


def caused_by(*names: str) -> Applies:
    """Applies where one of these is the cause."""

    def applies(case: Case, _states: Mapping[str, State]) -> bool:
        cause = case.around.episode.cause
        return cause is not None and cause.name in names

    return applies


def bad(*keys: str) -> Applies:
    """Applies where one of these questions has a bad answer."""
    return lambda _case, states: any(states.get(each) == "bad" for each in keys)


def recovered(case: Case, _states: Mapping[str, State]) -> bool:
    """Applies where it passed by itself."""
    return case.around.episode.recovered is True


def in_words(branches: Sequence[Branch]) -> tuple[Decision, ...]:
    """All branches, for a checklist without a run."""
    words = {
        "step": "that step",
        "checkpoint": "the newest checkpoint before it",
        "best": "the checkpoint with the best validation loss",
        "lower": f"by a factor of {EASED:g}",
        "higher": f"by a factor of {EASED:g}",
    }
    return tuple(Decision(each.when, each.do.format(**words)) for each in branches)


def decided(branches: Sequence[Branch], case: Case, states: Mapping[str, State]) -> tuple[Decision, ...]:
    """The first branch that applies to a run."""
    episode, span = case.around.episode, case.around.span
    if not episode.kind:
        return (Decision("nothing was found", "Continue: there is nothing to decide."),)
    if span.last < FOR_EVER:
        return (
            Decision("the run was rolled back after it", f"Continue: the run was rolled back at step {span.last}."),
        )
    words = {
        "step": f"step {episode.start}",
        "checkpoint": _checkpoint(case.around),
        "best": _best(case),
        "lower": _lower(case.around),
        "higher": _by(case.around, EASED),
    }
    chosen = next((each for each in branches if each.applies(case, states)), None)
    return () if chosen is None else (Decision(chosen.when, chosen.do.format(**words)),)


def _checkpoint(around: EpisodeContext) -> str:
    """The state to return to: before the trouble, and before its cause was first seen."""
    episode = around.episode
    since = episode.cause.since if episode.cause is not None and episode.cause.since is not None else episode.start
    first = min(since, episode.start)
    loss = around.loss
    if loss is None or first - int(loss.steps[0]) < FIRST_STEPS:
        return "step 0, as it began too early for a checkpoint"
    before = loss.steps[(loss.steps < first) & loss.finite]
    return f"the newest checkpoint of step {int(before[-1])} or earlier" if len(before) else "step 0"


def _best(case: Case) -> str:
    step = case.around.episode.evidence.get("best_step")
    if step is None:
        read = [each for each in case.diagnosis.curves if "val" in each.metric.lower()]
        step = read[0].best_step if read else None
    return "the checkpoint with the best validation loss" if step is None else f"the checkpoint of step {int(step)}"


def _lower(around: EpisodeContext) -> str:
    cause = around.episode.cause
    for remedy in cause.remedies if cause is not None else ():
        if remedy.action is Action.LOWER_LEARNING_RATE and remedy.baseline is not None:
            return remedy.change
    if cause is not None and cause.name == "learning_rate_jump":
        jumps = [each for rate in around.rates for each in jumps_in(rate) if each.step <= around.episode.start]
        if jumps:
            return f"from {shown(jumps[-1].after)} to {shown(jumps[-1].before)}"
    return _by(around, 1 / EASED)


def _by(around: EpisodeContext, factor: float) -> str:
    """From the rate at the trouble to that times the factor."""
    rates = [around.at(each) for each in around.rates]
    now = max((float(each[np.isfinite(each)].max()) for each in rates if np.isfinite(each).any()), default=0.0)
    if now <= 0:
        return f"by a factor of {EASED:g}"
    return f"from {shown(now)} to {now * factor:.1g}"
