"""Large epsilons, fp16 gradients that underflow, and updates that round to nothing."""

from __future__ import annotations

import pytest
from detectors.series import judged

from mlflow_stability.kinds.first_look.precision import EpsilonFacts, UnderflowFacts, UpdatesLostFacts
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Severity

BAD: dict[str, tuple[str, list[float], Facts]] = {
    "epsilon_large": ("gradient_over_epsilon", [0.002, 0.002, 0.001], EpsilonFacts(0.001)),
    "gradient_underflow": ("fp16_gradient_max", [3e-7, 3e-7, 2e-7], UnderflowFacts(2e-7, 6.1e-5)),
    "updates_lost": ("updates_lost", [0.97, 0.98], UpdatesLostFacts(0.98)),
}


@pytest.mark.parametrize("kind", BAD)
def test_it_is_found_if_each_measurement_shows_it(kind: str) -> None:
    quantity, values, facts = BAD[kind]
    (finding,) = judged(kind, **{quantity: values})
    assert (finding.severity, finding.step, finding.facts) == (Severity.WARNING, len(values) - 1, facts)


def test_gradients_of_exactly_zero_say_nothing_about_epsilon() -> None:
    assert judged("epsilon_large", gradient_over_epsilon=[0.0, 0.0, 0.0]) == []


GOOD: dict[str, tuple[str, list[float]]] = {
    "epsilon_large": ("gradient_over_epsilon", [0.002, 0.002, 5.0, 0.002]),
    "gradient_underflow": ("fp16_gradient_max", [3e-7, 3e-7, 0.01, 3e-7]),
    "updates_lost": ("updates_lost", [0.97, 0.6, 0.97, 0.5]),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_measurement_that_does_not_show_it_restarts_the_count(kind: str) -> None:
    quantity, values = GOOD[kind]
    assert judged(kind, **{quantity: values}) == []
