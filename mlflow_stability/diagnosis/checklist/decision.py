"""Decides what to do about a trouble: leave out a batch, restart, lower the rate, stop, or continue.

In: the choices of a checklist, in their order, and a run with the answers to its questions. Out: the first choice that
applies, with the run's own steps and rates; without a run all choices, as conditions. Guarantees: a rate or a step is
named only where the run recorded it; what has been done already is not asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mlflow_stability.diagnosis.causes.context import EpisodeContext
from mlflow_stability.diagnosis.causes.learning_rate import jumps_in
from mlflow_stability.diagnosis.checklist.question import Case, State
from mlflow_stability.diagnosis.findings.attempt_span import FOR_EVER
from mlflow_stability.kinds.progress.overfitting import BestStepFacts
from mlflow_stability.vocabulary.result import Action, Remedy

EASED = 3.0
"""By so much a rate is lowered or raised where nothing says to which value."""
FIRST_STEPS = 10
"""Before a trouble that begins so early there is no state worth keeping."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and when."""

    when: str
    """On what it depends; of a run, what was found."""
    remedies: tuple[Remedy, ...]
    """What to do, in this order."""

    @property
    def do(self) -> str:
        """What to do, in words."""
        return " ".join(str(each) for each in self.remedies)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to decide; it applies where one of its conditions does, and without any always. Names are separated by
    spaces.
    """

    when: str
    actions: tuple[Action | Remedy, ...]
    causes: str = ""
    """Where one of these is the cause."""
    bad: str = ""
    """Where one of these questions has a bad answer."""
    if_recovered: bool = False
    """Where the trouble passed by itself."""
    unless_found: str = ""
    """Where no finding of these kinds began at the same time or later."""

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What to do, in this order."""
        return tuple(Remedy(each) if isinstance(each, Action) else each for each in self.actions)

    @property
    def is_always(self) -> bool:
        """Whether it applies to any case."""
        return not (self.causes or self.bad or self.if_recovered or self.unless_found)

    def applies(self, case: Case, states: Mapping[str, State]) -> bool:
        """Whether it applies to a run with these answers."""
        episode = case.around.episode
        later = (each.start >= episode.start for each in case.findings(*self.unless_found.split()))
        return (
            self.is_always
            or (episode.cause is not None and episode.cause.name in self.causes.split())
            or any(states.get(key) == "bad" for key in self.bad.split())
            or (self.if_recovered and episode.recovered is True)
            or (bool(self.unless_found) and not any(later))
        )


def in_words(choices: Iterable[Choice]) -> tuple[Decision, ...]:
    """All choices, for a checklist without a run."""
    return tuple(Decision(choice.when, tuple(_eased(remedy) for remedy in choice.remedies)) for choice in choices)


def decided(choices: Iterable[Choice], case: Case, states: Mapping[str, State]) -> tuple[Decision, ...]:
    """The first choice that applies to a run."""
    last = case.around.span.last
    if not case.has_finding:
        return (Decision("nothing was found", (Remedy(Action.CONTINUE),)),)
    if last < FOR_EVER:
        return (Decision(f"the run was rolled back at step {last}", (Remedy(Action.CONTINUE),)),)
    chosen = next((choice for choice in choices if choice.applies(case, states)), None)
    if chosen is None:
        return ()
    return (Decision(chosen.when, tuple(_of_run(remedy, case) for remedy in chosen.remedies)),)


def _eased(remedy: Remedy) -> Remedy:
    """With a factor where it is about a rate, and none of its own."""
    changes = "change" in remedy.action.parts and remedy.factor is None
    return replace(remedy, factor=EASED) if changes else remedy


def _of_run(remedy: Remedy, case: Case) -> Remedy:
    """With the steps and rates of the run."""
    around, episode = case.around, case.around.episode
    if remedy.action is Action.STOP_AT_BEST:
        return replace(remedy, step=_best_step(case), unit=episode.unit)
    if "change" in remedy.action.parts and remedy.factor is None:
        remedy = _with_rate(remedy, around)
    if "step" not in remedy.action.parts:
        return remedy
    if remedy.action is not Action.RESTART_BEFORE_STEP:
        return replace(remedy, step=episode.start, unit=episode.unit)
    since = episode.cause.since if episode.cause is not None else None
    first = episode.start if since is None else min(since, episode.start)
    if around.loss is None or first - int(around.loss.steps[0]) < FIRST_STEPS:
        return Remedy(Action.RESTART_FROM_START)
    return replace(remedy, step=first, unit=episode.unit)


def _best_step(case: Case) -> int | None:
    best = case.around.episode.known(BestStepFacts)
    validations = (curve.best_step for curve in case.diagnosis.curves if "val" in curve.metric.lower())
    return next(validations, None) if best is None else best.best_step


def _with_rate(remedy: Remedy, around: EpisodeContext) -> Remedy:
    """From which rate to which: as the cause says, back from a jump, or by a factor."""
    cause = around.episode.cause
    if remedy.action is not Action.RAISE_LEARNING_RATE and cause is not None:
        for known in cause.remedies:
            if known.action is Action.LOWER_LEARNING_RATE and known.baseline is not None:
                return replace(remedy, baseline=known.baseline, target=known.target, factor=known.factor)
        jumps = [jump for rate in around.rates for jump in jumps_in(rate) if jump.step <= around.episode.start]
        if cause.name == "learning_rate_jump" and jumps:
            return replace(remedy, baseline=jumps[-1].after, target=jumps[-1].before)
    rates = np.concatenate([around.at(rate) for rate in around.rates] or [np.zeros(0)])
    now = float(np.max(rates, where=np.isfinite(rates), initial=0.0))
    if now <= 0:
        return _eased(remedy)
    target = now * EASED if remedy.action is Action.RAISE_LEARNING_RATE else now / EASED
    return replace(remedy, baseline=now, target=float(f"{target:.1g}"), factor=EASED)
