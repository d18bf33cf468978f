from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of

from mlflow_stability.diagnosis.checklist.checklist import ORDERS, ChecklistItem, checklist_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result.event import Event, Severity
from mlflow_stability.vocabulary.run.run_history import RunHistory


def filled(history: RunHistory, kind: str = "") -> dict[str, ChecklistItem]:
    return {item.question: item for item in checklist_of(kind, history, diagnosis_of(history))}


@pytest.mark.parametrize("kind", ["", "no_such_kind", *ORDERS])
def test_without_a_run_every_question_says_how_to_answer_it(kind: str) -> None:
    items = checklist_of(kind)
    assert items
    assert all(
        item.question.endswith("?") and item.how and item.state == "unknown" and not item.finding for item in items
    )


def test_the_classic_order_is_data_gradients_learning_rate_numerics() -> None:
    questions = " ".join(item.question for item in checklist_of("loss_spike"))
    places = [questions.index(word) for word in ("batch", "gradient", "learning rate", "finite")]
    assert places == sorted(places)


def test_for_nan_it_is_locate_inputs_overflow() -> None:
    questions = " ".join(item.question for item in checklist_of("nan_detected"))
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
    said = "Step 200: the first non-finite value comes from log in head."
    numbers = {f"from.{source}": 1.0, "output.inf": 7.0, "input.least": 0.0, "input.greatest": 1.0}
    events = [
        Event(200, "nan_detected", Severity.CRITICAL, "loss is NaN at step 200.", evidence={"loss": math.nan}),
        Event(200, "broken_batch", Severity.INFO, "The batch of step 200: ...", evidence=holds),
        Event(200, "nan_origin", Severity.INFO, said, "head", numbers),
    ]
    return run_of(metric_of("loss", losses), events=events)


def test_what_was_found_of_a_step_that_broke_answers_the_questions_about_it() -> None:
    items = filled(looked_into("forward", holds={"least.args[0]": -3.0, "greatest.args[0]": 2.5}), "nan_detected")
    where = items["Where did the first non-finite value appear?"].finding
    assert where.endswith("The first non-finite value comes from log in head.")
    inputs = items["Are the inputs of that step finite and in range?"]
    assert (inputs.state, inputs.finding) == ("ok", "All finite at step 200: args[0] from -3 to 2.5.")
    over = items["Did numbers overflow before they became NaN?"]
    assert over.state == "ok"
    assert over.finding.endswith("Its inputs range from 0 to 1.")


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
    assert {item.state for item in filled(history).values()} == {"ok"}
    assert all(item.finding for item in filled(history).values())


def test_every_kind_can_be_filled_from_any_run() -> None:
    for kind in ORDERS:
        for history in (run_named(loss=falling(50)), run_named(accuracy=falling(50)), run_named()):
            assert all(item.finding for item in filled(history, kind).values())
