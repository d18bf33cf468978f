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
    each for each in SLOW_FAILURES if each.train in (death_in_convolutions, frozen_layer, labels_never_belonged)
]


@cache
def recorded(training: Training) -> Trained:
    return trained(training, SEED)


@pytest.mark.slow
@pytest.mark.parametrize("training", QUICK, ids=lambda each: str(each.__name__))
def test_a_healthy_training_learns_its_task_and_no_view_of_it_shows_trouble(training: Training) -> None:
    result = judged(recorded(training))
    assert result.failure == ""
    assert {view: [each for each in result.found[view] if each.severity > Severity.INFO] for view in VIEWS} == {
        view: [] for view in VIEWS
    }


@pytest.mark.slow
@pytest.mark.parametrize("failure", QUICK_AND_ILL, ids=lambda each: str(each.name))
def test_a_training_that_breaks_quietly_is_found_as_what_it_is(failure: SlowFailure) -> None:
    assert judged(recorded(failure.train)).names(failure.expected)


@pytest.mark.slow
def test_judging_a_recording_again_finds_what_was_found_live() -> None:
    training = recorded(frozen_layer)
    live, anew = judged(training).found["live"], judged(training, anew=True).found["live"]
    assert sorted(live, key=lambda each: each.step) == sorted(anew, key=lambda each: each.step)


def test_every_training_of_the_zoo_has_a_name_of_its_own_and_says_what_it_does_wrong() -> None:
    assert len({each.__name__ for each in HEALTHY}) == len(HEALTHY) >= 40
    assert len({each.name for each in SLOW_FAILURES}) == len(SLOW_FAILURES)
    assert all(each.train.__doc__ and each.expected for each in SLOW_FAILURES)
