from __future__ import annotations

from findings import at_step

from mlflow_stability.session.output.troubles import ALWAYS_REPORTED, GAP_STEPS, Troubles
from mlflow_stability.vocabulary.result import Severity

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def said(*events: tuple[int, str, Severity]) -> list[tuple[int, str]]:
    troubles = Troubles()
    return [
        (step, kind) for step, kind, severity in events if troubles.is_news(at_step(step, kind, severity, "It was."))
    ]


def test_findings_of_severity_info_are_not_logged() -> None:
    assert said((5, "loss_spike", Severity.INFO)) == []


def test_the_first_finding_of_a_problem_and_worse_ones_are_logged() -> None:
    learning_rate_jump = [
        (302, "gradient_explosion", WARNING),
        (301, "learning_rate_jump", WARNING),
        (303, "loss_spike", CRITICAL),
        (304, "step_skipped", WARNING),
        (308, "gradient_explosion", CRITICAL),
        (313, "divergence", CRITICAL),
        (317, "inf_detected", CRITICAL),
        (318, "nan_detected", CRITICAL),
        (400, "activation_nonfinite", WARNING),
    ]
    assert said(*learning_rate_jump) == [(302, "gradient_explosion"), (313, "divergence"), (317, "inf_detected")]


def test_another_problem_is_logged_when_the_previous_one_is_over() -> None:
    first, soon, later = (
        (step, "loss_spike", WARNING) for step in (100, 100 + GAP_STEPS, 100 + GAP_STEPS + GAP_STEPS + 1)
    )
    assert said(first, soon, later) == [(100, "loss_spike"), (101 + 2 * GAP_STEPS, "loss_spike")]


def test_a_finding_unrelated_to_the_current_problem_is_logged_too() -> None:
    found = (10, "loss_spike", WARNING), (11, "memory_pressure", WARNING), (12, "memory_pressure", WARNING)
    assert said(*found) == [(10, "loss_spike"), (11, "memory_pressure")]


def test_after_a_rollback_findings_of_the_same_problem_are_logged_only_if_worse() -> None:
    troubles = Troubles()
    troubles.answered(313)
    assert not troubles.is_news(at_step(315, "loss_spike", CRITICAL, "It was."))
    assert troubles.is_news(at_step(316, "nan_detected", CRITICAL, "It was."))


def test_actions_are_always_logged() -> None:
    assert said(*[(step, "give_up", WARNING) for step in (10, 11)]) == [(10, "give_up"), (11, "give_up")]


def test_a_training_full_of_spikes_says_each_doubling_of_their_number() -> None:
    spikes = [(step * 2 * GAP_STEPS, "loss_spike", WARNING) for step in range(1, 41)]
    assert [step // (2 * GAP_STEPS) for step, _ in said(*spikes)] == [*range(1, ALWAYS_REPORTED + 1), 8, 16, 32]
