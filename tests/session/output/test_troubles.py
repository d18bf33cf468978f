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


def test_what_is_only_information_is_not_said() -> None:
    assert said((5, "loss_spike", Severity.INFO)) == []


def test_of_one_trouble_the_first_finding_is_said_and_what_is_worse() -> None:
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


def test_another_trouble_is_said_when_the_one_before_is_over() -> None:
    first, soon, later = (
        (step, "loss_spike", WARNING) for step in (100, 100 + GAP_STEPS, 100 + GAP_STEPS + GAP_STEPS + 1)
    )
    assert said(first, soon, later) == [(100, "loss_spike"), (101 + 2 * GAP_STEPS, "loss_spike")]


def test_what_has_nothing_to_do_with_a_trouble_is_said_beside_it() -> None:
    found = (10, "loss_spike", WARNING), (11, "memory_pressure", WARNING), (12, "memory_pressure", WARNING)
    assert said(*found) == [(10, "loss_spike"), (11, "memory_pressure")]


def test_after_a_rollback_what_is_left_of_the_trouble_is_not_said_unless_it_is_worse() -> None:
    troubles = Troubles()
    troubles.answered(313)
    assert not troubles.is_news(at_step(315, "loss_spike", CRITICAL, "It was."))
    assert troubles.is_news(at_step(316, "nan_detected", CRITICAL, "It was."))


def test_what_was_done_is_always_said() -> None:
    assert said(*[(step, "give_up", WARNING) for step in (10, 11)]) == [(10, "give_up"), (11, "give_up")]


def test_a_training_full_of_spikes_says_each_doubling_of_their_number() -> None:
    spikes = [(step * 2 * GAP_STEPS, "loss_spike", WARNING) for step in range(1, 41)]
    assert [step // (2 * GAP_STEPS) for step, _ in said(*spikes)] == [*range(1, ALWAYS_REPORTED + 1), 8, 16, 32]
