"""A missing warm-up, distinguished from a gradient that never reached the front."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Cause, Severity
from mlflow_stability.vocabulary.run import Metric
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 200
NORMS = {"stem": 3e-9, "body": 2e-8, "head": 0.2}
LOST = at_step(100, "gradient_vanishing", Severity.WARNING, "The gradient is lost on its way to stem.", "stem")


def measured(quantity: str, place: str, values: list[float], steps: list[int]) -> Metric:
    name = f"{quantity}@{place}" if place else quantity
    return metric_of(name, values, meaning=Meaning(quantity, place, is_known=True), steps=np.array(steps))


def cause_of(*, first_rate: float = 0.01, first_update: float = 0.06, second_loss: float = 2.5) -> Cause:
    losses = np.full(COUNT, 2.04) + 0.01 * np.random.default_rng(0).normal(size=COUNT)
    losses[:2] = 2.17, second_loss
    rates = np.full(COUNT, 0.01)
    rates[:50] = np.linspace(first_rate, 0.01, 50)
    diagnosis = diagnosis_of(
        run_of(
            metric_of("loss", losses),
            metric_of("grad_norm", np.full(COUNT, 0.3)),
            metric_of("learning_rate", rates),
            measured("update_ratio", "", [first_update, 0.001], [2, 10]),
            *(measured("grad_norm", name, [at, at], [100, 150]) for name, at in NORMS.items()),
            events=[LOST],
        )
    )
    assert diagnosis.cause is not None, diagnosis.cannot_tell
    return diagnosis.cause


def test_weights_that_the_first_updates_hurt_at_the_highest_rate_had_no_warm_up() -> None:
    cause = cause_of()
    assert (cause.name, cause.certainty) == ("no_warm_up", "likely")
    assert "up to 6.0% of their norm, and the loss rose from 2.17 to 2.5" in cause.statement


def test_a_rate_that_no_warm_up_could_fix_is_too_high_and_the_remedy_gives_a_factor() -> None:
    cause = cause_of(first_update=0.44)
    assert (cause.name, cause.certainty) == ("learning_rate_too_high", "likely")
    assert "rate of 0.01 is far too high: the update at step 2 changed the weights by 44%" in cause.statement
    assert [str(remedy) for remedy in cause.remedies] == [
        "Lower the learning rate from 0.01 to about 0.0002, 44 times less."
    ]


@pytest.mark.parametrize("but", [{"first_rate": 1e-4}, {"first_update": 0.001}, {"second_loss": 2.18}])
def test_vanishing_gradients_are_the_cause_where_one_of_the_three_conditions_is_missing(but: dict[str, float]) -> None:
    cause = cause_of(**but)
    assert (cause.name, cause.place) == ("vanishing_gradients", "body")
    assert "from body down" in cause.statement
