"""Fill in the checklist of a finding from a run, and decide what to do.

Guarantees: what the run does not show is unknown, never guessed. A decision names a rate or a step only if the run
recorded it, and nothing that was done already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.advice import MIN_STEPS_BEFORE
from mlflow_stability.diagnosis.causes.context import EpisodeContext, episode_context, jumps_in
from mlflow_stability.diagnosis.checklist.orders import CHOICES, GENERAL, NOTHING_FOUND, ORDERS, Choice
from mlflow_stability.diagnosis.checklist.questions import QUESTIONS
from mlflow_stability.diagnosis.checklist.sources import Case, State
from mlflow_stability.diagnosis.findings.attempts import FOR_EVER
from mlflow_stability.kinds.progress.overfitting import BestStepFacts
from mlflow_stability.vocabulary.result import Action, Diagnosis, Finding, Remedy, Severity, Text
from mlflow_stability.vocabulary.run import RunHistory

RATE_FACTOR = 3.0
"""Factor by which a learning rate is lowered or raised if nothing shows to which value."""


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    question: str
    finding: str = ""
    """What this run shows; empty where no run was given."""
    state: State = "unknown"
    how: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    when: str
    """On what it depends; of a run, what was found."""
    remedies: tuple[Remedy, ...]

    @property
    def do(self) -> str:
        return " ".join(map(str, self.remedies))


@dataclass(frozen=True, slots=True)
class Checklist:
    kind: str
    """The type of finding it is for; empty for the general one."""
    items: tuple[ChecklistItem, ...]
    decisions: tuple[Decision, ...]
    """Of a run, the one that applies; else all, each with its condition."""
    note: str = ""
    """What to know of it: that this type has no checklist of its own, or that the run has no such finding."""


def checklist_of(kind: str = "", history: RunHistory | None = None, diagnosis: Diagnosis | None = None) -> Checklist:
    """Return the checklist of a kind of finding, filled in if a run and its diagnosis are given.

    Without a kind it is that of the run's worst finding above INFO.
    """
    episode = _episode(kind, diagnosis.findings if diagnosis is not None else ())
    kind_asked = kind or (episode.kind if episode is not None else "")
    order = NOTHING_FOUND if history is not None and not kind_asked else ORDERS.get(kind_asked, GENERAL)
    own = [kind_asked] if kind_asked in QUESTIONS and order is GENERAL else []
    questions = {key: QUESTIONS[key] for key in (*own, *order.questions.split())}
    choices = [CHOICES[key] for key in order.choices.split()]
    is_general = kind_asked and kind_asked not in ORDERS
    note = f"{kind_asked} has no checklist of its own: this is the general one." if is_general else ""
    if history is None or diagnosis is None:
        items = tuple(ChecklistItem(question.text, how=question.check_by_hand) for question in questions.values())
        conditions = (Decision(choice.when, tuple(map(_with_factor, choice.remedies))) for choice in choices)
        return Checklist(kind_asked, items, tuple(conditions), note)
    curves = run_curves(history)
    if episode is None:
        last = diagnosis.steps[1] if diagnosis.steps else 0
        attempt = max((curve.attempt for curve in curves.losses), default=0)
        episode = Finding.at(Text(""), last, Severity.INFO, attempt=attempt)
        note = " ".join(filter(None, (note, f"The run has no {kind} finding." if kind else "")))
    case = Case(episode_context(episode, history, curves), diagnosis)
    answers = {key: question.answer(case) for key, question in questions.items()}
    items = tuple(
        ChecklistItem(question.text, answers[key].text, answers[key].state, question.check_by_hand)
        for key, question in questions.items()
    )
    states = {key: answer.state for key, answer in answers.items()}
    return Checklist(kind_asked, items, _decisions(choices, case, states), note)


def _episode(kind: str, episodes: Sequence[Finding]) -> Finding | None:
    """Return the first episode of the kind; without a kind, the first of the worst above INFO."""
    if kind:
        return next((episode for episode in episodes if episode.kind == kind), None)
    bad = [episode for episode in episodes if episode.severity > Severity.INFO]
    return min(bad, key=lambda episode: (-episode.severity, episode.attempt, episode.start), default=None)


def _decisions(choices: Iterable[Choice], case: Case, states: Mapping[str, State]) -> tuple[Decision, ...]:
    """Return the first choice that applies to a run."""
    last = case.context.span.last
    if not case.has_finding:
        return (Decision("nothing was found", (Remedy(Action.CONTINUE),)),)
    if last < FOR_EVER:
        return (Decision(f"the run was rolled back at step {last}", (Remedy(Action.CONTINUE),)),)
    choice = next((choice for choice in choices if choice.applies(case, states)), None)
    return (
        () if choice is None else (Decision(choice.when, tuple(_of_run(remedy, case) for remedy in choice.remedies)),)
    )


def _with_factor(remedy: Remedy) -> Remedy:
    needs_factor = "change" in remedy.action.parts and remedy.factor is None
    return replace(remedy, factor=RATE_FACTOR) if needs_factor else remedy


def _of_run(remedy: Remedy, case: Case) -> Remedy:
    context, episode = case.context, case.context.episode
    if remedy.action is Action.STOP_AT_BEST:
        return replace(remedy, step=_best_step(case), unit=episode.unit)
    if "change" in remedy.action.parts and remedy.factor is None:
        remedy = _with_rate(remedy, context)
    if "step" not in remedy.action.parts:
        return remedy
    if remedy.action is not Action.RESTART_BEFORE_STEP:
        return replace(remedy, step=episode.start, unit=episode.unit)
    since = episode.cause.since if episode.cause is not None else None
    first = episode.start if since is None else min(since, episode.start)
    if context.loss is None or first - int(context.loss.steps[0]) < MIN_STEPS_BEFORE:
        return Remedy(Action.RESTART_FROM_START)
    return replace(remedy, step=first, unit=episode.unit)


def _best_step(case: Case) -> int | None:
    best = case.context.episode.facts_as(BestStepFacts)
    validations = (curve.best_step for curve in case.diagnosis.curves if "val" in curve.metric.lower())
    return next(validations, None) if best is None else best.best_step


def _with_rate(remedy: Remedy, context: EpisodeContext) -> Remedy:
    """Return a remedy with the old and the new rate: those of the cause, back from a jump, or by a factor."""
    cause, is_raise = context.episode.cause, remedy.action is Action.RAISE_LEARNING_RATE
    if not is_raise and cause is not None:
        for other in cause.remedies:
            if other.action is Action.LOWER_LEARNING_RATE and other.baseline is not None:
                return replace(remedy, baseline=other.baseline, target=other.target, factor=other.factor)
        jumps = [jump for rate in context.rates for jump in jumps_in(rate) if jump.step <= context.episode.start]
        if cause.name == "learning_rate_jump" and jumps:
            return replace(remedy, baseline=jumps[-1].after, target=jumps[-1].before)
    rates = np.concatenate([context.during(rate) for rate in context.rates] or [np.zeros(0)])
    now = float(np.max(rates, where=np.isfinite(rates), initial=0.0))
    if now <= 0:
        return _with_factor(remedy)
    target = now * RATE_FACTOR if is_raise else now / RATE_FACTOR
    return replace(remedy, baseline=now, target=float(f"{target:.1g}"), factor=RATE_FACTOR)
