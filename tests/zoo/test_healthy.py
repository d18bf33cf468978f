from __future__ import annotations

from functools import cache

import pytest
from zoo.healthy.catalog import HEALTHY
from zoo.healthy.networks import graph
from zoo.healthy.perfect import hinge_to_zero
from zoo.healthy.representations import triplets
from zoo.judged import VIEWS, Trained, Training, judged, trained
from zoo.slow_failures import SLOW_FAILURES, SlowFailure, death_in_convolutions, frozen_layer, labels_never_belonged

from mlflow_stability.vocabulary.result import Severity

SEED = 0
QUICK = (graph, hinge_to_zero, triplets)
"""The others take their time; the benchmark runs them all."""
QUICK_AND_ILL = [
    failure
    for failure in SLOW_FAILURES
    if failure.train in (death_in_convolutions, frozen_layer, labels_never_belonged)
]


@cache
def recorded(training: Training) -> Trained:
    return trained(training, SEED)


@pytest.mark.slow
@pytest.mark.parametrize("training", QUICK, ids=lambda letter: str(letter.__name__))
def test_a_healthy_training_learns_its_task_and_no_view_of_it_shows_trouble(training: Training) -> None:
    result = judged(recorded(training))
    assert result.failure == ""
    assert {
        view: [finding for finding in result.findings[view] if finding.severity > Severity.INFO] for view in VIEWS
    } == {view: [] for view in VIEWS}


@pytest.mark.slow
@pytest.mark.parametrize("failure", QUICK_AND_ILL, ids=lambda letter: str(letter.name))
def test_a_training_that_breaks_quietly_is_found_as_what_it_is(failure: SlowFailure) -> None:
    assert judged(recorded(failure.train)).names(failure.expected)


@pytest.mark.slow
def test_judging_a_recording_again_finds_what_was_found_live() -> None:
    training = recorded(frozen_layer)
    live, anew = judged(training).findings["live"], judged(training, anew=True).findings["live"]
    assert sorted(live, key=lambda point: point.step) == sorted(anew, key=lambda point: point.step)


def test_every_training_of_the_zoo_has_a_name_of_its_own_and_says_what_it_does_wrong() -> None:
    assert len({item.__name__ for item in HEALTHY}) == len(HEALTHY) >= 40
    assert len({failure.name for failure in SLOW_FAILURES}) == len(SLOW_FAILURES)
    assert all(failure.train.__doc__ and failure.expected for failure in SLOW_FAILURES)
