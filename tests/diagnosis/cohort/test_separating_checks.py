"""Mistakes in the set-up that separate runs with trouble from stable ones."""

from __future__ import annotations

from dataclasses import replace

from diagnosis.cards import made

from mlflow_stability.diagnosis.compare import comparison_of, separating_checks
from mlflow_stability.vocabulary.result import Mark, RunCard, Severity


def run(name: str, *mistakes: str, severity: Severity = Severity.WARNING) -> RunCard:
    """A run with these mistakes, which are its only findings."""
    marks = tuple(Mark(kind, severity, 10, 10, False) for kind in mistakes)
    outcome = "unstable" if mistakes and severity >= Severity.WARNING else "healthy"
    return replace(made(name, {}), marks=marks, outcome=outcome)


BYTES = "Inputs of an unusual size (input_scale): in 2 of 2 runs with trouble, in none of 2 stable ones."


def test_a_mistake_of_all_runs_with_trouble_is_named() -> None:
    cards = [run("a"), run("b", "input_scale"), run("c"), run("d", "input_scale")]
    assert separating_checks(cards) == (BYTES,)
    assert comparison_of(cards).notes == (BYTES,)


def test_the_most_frequent_mistake_comes_first() -> None:
    bad = [run("a", "input_scale", "one_class"), run("b", "input_scale", "one_class"), run("c", "one_class")]
    named = separating_checks([*bad, run("d"), run("e")])
    assert [sentence.split("(")[1].split(")")[0] for sentence in named] == ["one_class", "input_scale"]


def test_a_mistake_of_one_run_of_many_and_one_of_a_stable_run_separate_nothing() -> None:
    stable = [run("a"), run("b")]
    assert separating_checks([*stable, run("c", "input_scale"), run("d", "one_class")]) == ()
    mentioned = run("e", "input_scale", severity=Severity.INFO)
    assert separating_checks([*stable, mentioned, run("c", "input_scale"), run("d", "input_scale")]) != ()


def test_two_runs_of_either_sort_are_needed() -> None:
    assert separating_checks([run("a"), run("b", "input_scale"), run("c", "input_scale")]) == ()
