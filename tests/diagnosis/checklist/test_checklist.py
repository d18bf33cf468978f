from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of
from findings import at_step

from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.diagnosis.checklist.checklist import CHOICES, GENERAL, ORDERS, ChecklistItem, Order, checklist_of
from mlflow_stability.diagnosis.checklist.questions import QUESTIONS
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.catalog import TYPES
from mlflow_stability.vocabulary.result import Action, Severity
from mlflow_stability.vocabulary.run import RunHistory


def filled(history: RunHistory, kind: str = "") -> dict[str, ChecklistItem]:
    return {item.question: item for item in checklist_of(kind, history, diagnosis_of(history)).items}


@pytest.mark.parametrize("kind", ["", "no_such_kind", *ORDERS])
def test_without_a_run_every_question_says_how_to_answer_it(kind: str) -> None:
    items = checklist_of(kind).items
    assert items
    assert all(
        item.question.endswith("?") and item.how and item.state == "unknown" and not item.finding for item in items
    )


def test_the_classic_order_is_data_gradients_learning_rate_numerics() -> None:
    questions = " ".join(item.question for item in checklist_of("loss_spike").items)
    places = [questions.index(word) for word in ("batch", "gradient", "learning rate", "finite")]
    assert places == sorted(places)


def test_the_checklist_for_nan_goes_from_location_to_inputs_to_overflow() -> None:
    questions = " ".join(item.question for item in checklist_of("nan_detected").items)
    places = [questions.index(word) for word in ("first non-finite", "inputs", "overflow")]
    assert places == sorted(places)


def test_a_run_that_broke_fills_in_where_and_what_it_cannot_know() -> None:
    losses = falling(300)
    losses[200], losses[201:] = math.inf, math.nan
    items = filled(run_named(loss=losses, learning_rate=np.full(300, 3e-4)))
    assert items["Where did the first non-finite value appear?"].finding == "First seen in loss at step 200."
    assert items["Did numbers overflow before they became NaN?"].state == "bad"
    assert items["Are the inputs of that step finite and in range?"].state == "unknown"
    assert items["Are the learning rate and its schedule right?"].finding.startswith(
        "Learning rate: constant at 0.0003; at"
    )


def looked_into(source: str, *, holds: dict[str, float]) -> RunHistory:
    losses = falling(300)
    losses[200:] = math.nan
    text = "Step 200: the first non-finite value comes from log in head."
    numbers = {f"from.{source}": 1.0, "output.inf": 7.0, "input.least": 0.0, "input.greatest": 1.0}
    events = [
        at_step(200, "nan_detected", Severity.CRITICAL, "loss is NaN at step 200.", evidence={"loss": math.nan}),
        at_step(200, "broken_batch", Severity.INFO, "The batch of step 200: ...", evidence=holds),
        at_step(200, "nan_origin", Severity.INFO, text, "head", numbers),
    ]
    return run_of(metric_of("loss", losses), events=events)


def test_the_trace_of_a_non_finite_step_answers_the_questions_about_it() -> None:
    items = filled(looked_into("forward", holds={"least.args[0]": -3.0, "greatest.args[0]": 2.5}), "nan_detected")
    where = items["Where did the first non-finite value appear?"].finding
    assert where.endswith("The first non-finite value comes from log in head.")
    inputs = items["Are the inputs of that step finite and in range?"]
    assert (inputs.state, inputs.finding) == ("ok", "All finite at step 200: args[0] from -3 to 2.5.")
    over = items["Did numbers overflow before they became NaN?"]
    assert over.state == "ok"
    assert over.finding.endswith("Its inputs range from 0 to 1.")


def test_a_loss_is_not_called_defined_because_its_origin_was_not_traced() -> None:
    history = looked_into("forward", holds={})
    untraced = replace(history, events=tuple(event for event in history.events or () if event.kind != "nan_origin"))
    question = "Is every part of the loss defined for its inputs?"
    assert filled(history, "nan_detected")[question].state == "bad"
    assert filled(untraced, "nan_detected")[question].state == "unknown"


def test_inputs_that_were_not_finite_are_counted() -> None:
    items = filled(looked_into("input", holds={"not_finite.args[0]": 12.0}), "nan_detected")
    inputs = items["Are the inputs of that step finite and in range?"]
    assert (inputs.state, inputs.finding) == ("bad", "Non-finite at step 200: 12 numbers of args[0].")
    assert items["Did numbers overflow before they became NaN?"].finding.startswith(
        "No: the batch itself was non-finite"
    )


@pytest.mark.parametrize(("last", "state"), [(0.01, "ok"), (4.4, "bad")])
def test_small_gradients_are_trouble_only_where_nothing_was_learned(last: float, state: str) -> None:
    losses, norms = falling(300, last=last), np.geomspace(1.0, 1e-3, 300)
    losses[290:] = norms[290:] = math.nan
    items = filled(run_named(loss=losses, grad_norm=norms), "nan_detected")
    assert items["Are the gradient norms normal, in every layer?"].state == state


def test_a_healthy_run_has_nothing_bad_on_its_list() -> None:
    history = run_named(loss=falling(300), learning_rate=np.full(300, 3e-4), grad_norm=np.ones(300))
    items = filled(history)
    assert len(items) == 8
    assert {item.state for item in items.values()} == {"ok", "unknown"}
    assert all(item.finding for item in items.values())


def test_the_batch_on_the_list_is_that_of_its_own_step() -> None:
    losses = falling(500)
    losses[[200, 400]] = 40.0
    spike = at_step(200, "loss_spike", Severity.WARNING, "loss 40 at step 200.", evidence={"loss": 40.0})
    batches = [
        at_step(step, "spike_batch", Severity.INFO, f"Batch of the loss spike at step {step}: ...")
        for step in (400, 200)
    ]
    broken = at_step(408, "broken_batch", Severity.INFO, "The batch of step 408: ...")
    items = filled(run_of(metric_of("loss", losses), events=[spike, *batches, broken]), "loss_spike")
    batch = items["Is the batch of that step unusual?"]
    assert (batch.finding, batch.state) == ("Batch of the loss spike at step 200: ...", "unknown")
    items = filled(run_of(metric_of("loss", losses), events=[spike, broken]), "loss_spike")
    assert items["Is the batch of that step unusual?"].finding == "No unusual batch recorded at step 200."


def test_a_checkpoint_comes_first_on_the_list_of_a_loss_spike() -> None:
    first, *others = checklist_of("loss_spike").items
    assert first.question == "Is a good state saved?"
    assert len(others) == 24


def test_every_kind_can_be_filled_from_any_run() -> None:
    for kind in ORDERS:
        for history in (run_named(loss=falling(50)), run_named(accuracy=falling(50)), run_named()):
            assert all(item.finding for item in filled(history, kind).values())


LONG = (
    "nan_detected",
    "divergence",
    "loss_spike",
    "plateau",
    "overfitting",
    "gradient_vanishing",
    "gradient_explosion",
    "step_time_increase",
    "out_of_memory",
    "sdr_collapse",
    "attention_collapse",
)


@pytest.mark.parametrize("kind", LONG)
def test_the_great_troubles_have_twelve_to_twenty_five_different_steps(kind: str) -> None:
    questions = [item.question for item in checklist_of(kind).items]
    assert 12 <= len(questions) == len(set(questions)) <= 25


@pytest.mark.parametrize("order", [GENERAL, *ORDERS.values()])
def test_every_checklist_ends_in_a_decision_for_any_case(order: Order) -> None:
    choices = [CHOICES[key] for key in order.choices.split()]
    assert choices[-1].is_always
    assert not any(choice.is_always for choice in choices[:-1])
    assert set(order.questions.split()) <= set(QUESTIONS)
    assert {key for choice in choices for key in choice.bad.split()} <= set(order.questions.split())


def test_every_question_and_every_choice_is_in_a_checklist() -> None:
    orders = (GENERAL, *ORDERS.values())
    asked = {key for order in orders for key in order.questions.split()}
    assert set(QUESTIONS) - asked <= {finding_type.kind for finding_type in TYPES}
    assert set(CHOICES) == {key for order in orders for key in order.choices.split()}
    assert {cause for choice in CHOICES.values() for cause in choice.causes.split()} <= set(causes())


@pytest.mark.parametrize("kind", LONG)
def test_without_a_run_every_decision_has_its_condition(kind: str) -> None:
    decisions = checklist_of(kind).decisions
    assert len(decisions) >= 2
    assert not any("{" in decision.do or not decision.when for decision in decisions)


def test_a_note_says_when_a_finding_has_no_checklist_of_its_own() -> None:
    assert checklist_of("low_mfu").note == ""
    assert checklist_of("dead_units").note == "dead_units has no checklist of its own: this is the general one."


def test_a_finding_without_a_checklist_of_its_own_has_its_own_question_before_the_general_ones() -> None:
    questions = [item.question for item in checklist_of("dead_units").items]
    assert questions == ["Are units dead?", *(item.question for item in checklist_of().items)]


def test_numbers_in_a_question_of_a_finding_are_those_of_its_thresholds() -> None:
    checks = {item.question: item.how for item in checklist_of("dead_expert").items}
    assert "below 2 % of an even share" in checks["Do some experts get no tokens?"]


def test_a_trouble_that_began_too_early_for_a_checkpoint_restarts_from_the_first_step() -> None:
    losses = falling(300)
    losses[4:] = math.nan
    history = run_named(loss=losses)
    (decision,) = checklist_of("nan_detected", history, diagnosis_of(history)).decisions
    assert [remedy.action for remedy in decision.remedies if "RESTART" in remedy.action.name] == [
        Action.RESTART_FROM_START
    ]


def test_a_run_without_the_finding_has_nothing_to_decide() -> None:
    history = run_named(loss=falling(300))
    checklist = checklist_of("loss_spike", history, diagnosis_of(history))
    assert checklist.note == "The run has no loss_spike finding."
    assert [(decision.when, decision.do) for decision in checklist.decisions] == [("nothing was found", "Continue.")]


def test_a_jump_of_the_rate_is_decided_with_its_own_rate_and_a_step_before_it() -> None:
    losses, rates = falling(400), np.full(400, 1e-3)
    rates[300:], losses[310:] = 3e-2, np.geomspace(3, 60, 90)
    history = run_named(loss=losses, learning_rate=rates)
    (decision,) = checklist_of("divergence", history, diagnosis_of(history)).decisions
    assert decision.when == "steps were too large"
    restart, lower = decision.remedies
    assert (restart.action, restart.step) == (Action.RESTART_BEFORE_STEP, 300)
    assert (lower.action, lower.baseline, lower.target) == (Action.LOWER_LEARNING_RATE, 0.03, 0.001)
    assert decision.do.startswith(
        "Restart from a checkpoint before step 300. Lower the learning rate from 0.03 to 0.001"
    )


def test_a_spike_that_passed_by_itself_is_decided_with_continue() -> None:
    losses = falling(400)
    losses[300] = 40.0
    history = run_named(loss=losses)
    (decision,) = checklist_of("loss_spike", history, diagnosis_of(history)).decisions
    assert decision.do.startswith("Continue. If it happens again, leave out the batch of step 300")


def test_overfitting_is_decided_with_the_step_of_the_best_validation() -> None:
    vals = np.concatenate([np.linspace(2.0, 1.0, 100), np.linspace(1.0, 2.5, 200)])
    history = run_named(loss=falling(300, last=0.05), val_loss=vals)
    (decision,) = checklist_of("overfitting", history, diagnosis_of(history)).decisions
    assert decision.remedies[0].action is Action.STOP_AT_BEST
    assert 95 <= (decision.remedies[0].step or 0) <= 105


def test_questions_about_metrics_that_were_not_logged_have_no_data() -> None:
    history = run_named(loss=falling(300))
    items = filled(history, "attention_collapse")
    assert items["How far did the attention entropy fall?"].finding == "No data: attention entropy not logged."


def test_a_metric_that_rose_is_reported_with_both_values() -> None:
    norms = np.full(300, 10.0)
    norms[200:] = 45.0
    items = filled(run_named(loss=falling(300), param_norm=norms), "attention_collapse")
    assert items["Did the norm of the weights grow?"].state == "bad"
    assert items["Did the norm of the weights grow?"].finding.startswith("Norm of the weights: 10 before, 45 at step")
