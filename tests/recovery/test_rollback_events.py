from __future__ import annotations

from findings import at_step

from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts, NanSource
from mlflow_stability.kinds.reported.rollback import HeldRate, RollbackFacts
from mlflow_stability.recovery.rollback_events import (
    FROM_THE_START,
    IN_GENERAL,
    IN_HALF,
    data_changed_event,
    give_up_event,
    rollback_event,
    what_to_change,
)
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.vocabulary.result import Action, Remedy, Severity


def test_a_rollback_event_has_its_reason_its_target_the_steps_lost_and_its_duration() -> None:
    decision = Decision("rollback", "loss stood high.", 196, 101, 0.5, 200)
    event = rollback_event(decision, 212, seconds=0.02, rollbacks=1)
    assert (event.kind, event.severity, event.step) == ("rollback", Severity.INFO, 212)
    assert "from step 212 to step 101 (111 steps lost): loss stood high." in event.message
    assert "0.5 times its scheduled value and returns to it over 200 steps" in event.message
    assert event.metrics == {"target": 101, "onset": 196, "steps_lost": 111, "seconds": 0.02, "rollbacks": 1}
    eased = rollback_event(decision, 212, seconds=0.02, rollbacks=1, learning_rate=0.005)
    assert "Learning rate now 0.005: it starts at 0.5 times its scheduled value" in eased.message
    assert eased.metrics["learning_rate"] == 0.005


def test_giving_up_for_good_is_critical_and_says_what_continues() -> None:
    event = give_up_event(Decision("give_up", "Nothing helps.", 196, final=True), 212, rollbacks=3)
    assert event.severity is Severity.CRITICAL
    assert event.message.startswith(
        "No rollback at step 212: Nothing helps. No further rollbacks; broken steps are still skipped"
    )


def test_giving_up_on_one_problem_is_a_warning() -> None:
    event = give_up_event(Decision("give_up", "No state.", 30), 40, rollbacks=0)
    assert event.severity is Severity.WARNING
    assert "left to itself" not in event.message


def test_a_rate_that_is_held_down_is_not_called_a_share_of_what_the_schedule_has_now() -> None:
    decision = Decision("rollback", "loss is high.", 400, 301, 0.5, 200)
    held = HeldRate(0.198, 0.001, 500)
    event = rollback_event(decision, 413, seconds=0.02, rollbacks=1, learning_rate=0.0005, held=held)
    assert event.message.endswith(
        "Learning rate now 0.0005: it starts at 0.5 times 0.001, its scheduled value of step 301, and returns to that "
        "over 200 steps: the present one, 0.198, is a jump. The limit, 0.001, doubles every 500 steps."
    )


def test_the_event_for_changed_data_names_the_weights_from_which_training_continues() -> None:
    undone = Decision("data_changed", "The data changed.", 400, target=412, undoes=111)
    event = data_changed_event(undone, 422, rollbacks=1)
    assert (event.kind, event.severity, event.metrics["target"]) == ("data_changed", Severity.WARNING, 412)
    assert "Going back to the weights of step 412, as they were before the rollback." in event.message
    stays = data_changed_event(Decision("data_changed", "The data changed.", 400), 422, rollbacks=1)
    assert "The training continues from the restored weights." in stays.message


def test_a_rollback_names_the_finding_that_it_answers() -> None:
    finding = at_step(212, "divergence", Severity.CRITICAL, "loss stood high.")
    event = rollback_event(Decision("rollback", "", 196, 101, finding=finding), 213, seconds=0.02, rollbacks=1)
    assert isinstance(event.facts, RollbackFacts)
    assert (event.facts.finding, event.facts.finding_step) == ("divergence", 212)


def test_after_giving_up_what_led_to_the_first_nan_comes_first_and_fp16_where_it_may_have_overflowed() -> None:
    by_loss, by_input = (
        at_step(9, "nan_origin", Severity.INFO, facts=NanOriginFacts(source), remedies=(Remedy(Action.CLIP_GRADIENTS),))
        for source in (NanSource.LOSS, NanSource.INPUT)
    )
    assert what_to_change() == IN_GENERAL
    assert what_to_change(no_step_taken=True) == FROM_THE_START
    assert what_to_change(overflowed_in_half=True) == (*IN_HALF, *IN_GENERAL)
    assert what_to_change(by_loss, overflowed_in_half=True) == (*IN_HALF, *by_loss.remedies, *IN_GENERAL)
    assert what_to_change(by_input, overflowed_in_half=True) == (*by_input.remedies, *IN_GENERAL)
