"""The order of checks that people who train models go through, filled in with what a run shows.

In: a type of finding, and a run or none. Out: questions in their order, each with what the run shows and how to check
it by hand, and a decision. Guarantees: what the run does not show is unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.causes.context import surroundings_of
from mlflow_stability.diagnosis.checklist.decision import Decision, decided, in_words
from mlflow_stability.diagnosis.checklist.orders import CHOICES, NOTHING_FOUND, ORDERS, order_of
from mlflow_stability.diagnosis.checklist.question import Case, State
from mlflow_stability.diagnosis.checklist.questions import QUESTIONS
from mlflow_stability.vocabulary.result import Diagnosis, Finding, Severity, Text
from mlflow_stability.vocabulary.run import RunHistory


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """One thing to check."""

    question: str
    finding: str = ""
    """What this run shows; empty where no run was given."""
    state: State = "unknown"
    how: str = ""
    """How to check it by hand."""


@dataclass(frozen=True, slots=True)
class Checklist:
    """What to check, and what to decide."""

    kind: str
    """The type of finding it is for; empty for the general one."""
    items: tuple[ChecklistItem, ...]
    decisions: tuple[Decision, ...]
    """Of a run, the one that applies; else all, each with its condition."""
    note: str = ""
    """What to know of it: that this type has no checklist of its own, or that the run has no such finding."""


def checklist_of(kind: str = "", history: RunHistory | None = None, diagnosis: Diagnosis | None = None) -> Checklist:
    """The checklist of one type of finding, filled in where a run and its diagnosis are given.

    Of a run and no type: that of the worst thing that happened in it; what is INFO decides nothing.
    """
    episodes = diagnosis.findings if diagnosis is not None else ()
    episode = _episode(kind, episodes)
    asked = kind or (episode.kind if episode is not None else "")
    order = NOTHING_FOUND if history is not None and not asked else order_of(asked)
    questions = {key: QUESTIONS[key] for key in order.questions.split()}
    choices = [CHOICES[key] for key in order.choices.split()]
    note = f"{asked} has no checklist of its own: this is the general one." if asked and asked not in ORDERS else ""
    if history is None or diagnosis is None:
        items = tuple(ChecklistItem(question.text, how=question.check_by_hand) for question in questions.values())
        return Checklist(asked, items, in_words(choices), note)
    curves = run_curves(history)
    if episode is None:
        last = diagnosis.steps[1] if diagnosis.steps else 0
        attempt = max((curve.attempt for curve in curves.losses), default=0)
        episode = Finding.at(Text(""), last, Severity.INFO, attempt=attempt)
        note = " ".join(filter(None, (note, f"The run has no {kind} finding." if kind else "")))
    case = Case(surroundings_of(episode, history, curves), diagnosis)
    answers = {key: question.answer(case) for key, question in questions.items()}
    items = tuple(
        ChecklistItem(questions[key].text, answer.text, answer.state, questions[key].check_by_hand)
        for key, answer in answers.items()
    )
    states = {key: answer.state for key, answer in answers.items()}
    return Checklist(asked, items, decided(choices, case, states), note)


def _episode(kind: str, episodes: Sequence[Finding]) -> Finding | None:
    """The first episode of the kind; without a kind the worst above INFO, and of the worst the first."""
    if kind:
        return next((each for each in episodes if each.kind == kind), None)
    bad = [each for each in episodes if each.severity > Severity.INFO]
    return min(bad, key=lambda each: (-each.severity, each.attempt, each.start), default=None)
