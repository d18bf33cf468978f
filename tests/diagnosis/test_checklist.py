from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, run_named

from mlflow_stability.diagnosis.checklist import ORDERS, ChecklistItem, checklist_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.run_history import RunHistory


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
    places = [questions.index(word) for word in ("batch", "gradients", "learning rate", "finite")]
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
    assert items["Is the learning rate right, and its schedule?"].finding == "Learning rate: constant at 0.0003."


def test_a_healthy_run_has_nothing_bad_on_its_list() -> None:
    history = run_named(loss=falling(300), learning_rate=np.full(300, 3e-4), grad_norm=np.ones(300))
    assert {item.state for item in filled(history).values()} == {"ok"}
    assert all(item.finding for item in filled(history).values())


def test_every_kind_can_be_filled_from_any_run() -> None:
    for kind in ORDERS:
        for history in (run_named(loss=falling(50)), run_named(accuracy=falling(50)), run_named()):
            assert all(item.finding for item in filled(history, kind).values())
