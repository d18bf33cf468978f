from __future__ import annotations

import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import over_steps

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.diagnosis.advice import one_of_each_topic, with_fitting_remedies
from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.catalog import KINDS, documentation
from mlflow_stability.kinds.inside.sparse_codes import SdrCollapse
from mlflow_stability.kinds.optimizer.update_size import TinyUpdateFacts, UpdateRatioLow
from mlflow_stability.vocabulary.result import (
    CLIP_GRADIENTS,
    LOWER_RATE,
    LOWER_RATE_2_TO_5,
    LOWER_RATE_2_TO_5_OR_CLIP,
    LOWER_RATE_5_TO_10,
    RAISE_OR_LOWER_RATE,
    WARM_UP_LEARNING_RATE,
    Action,
    Cause,
    Finding,
    Remedy,
    Severity,
    Topic,
)

INSPECT = Remedy(Action.INSPECT_BATCH)
EXACT = Remedy(Action.LOWER_LEARNING_RATE, target=0.002, baseline=0.09, factor=44.0)


def test_the_most_exact_advice_to_lower_the_learning_rate_replaces_the_others() -> None:
    lower = Remedy(Action.LOWER_RATE_OR_LENGTHEN_WARM_UP)
    assert one_of_each_topic((lower, INSPECT, LOWER_RATE_2_TO_5, EXACT, LOWER_RATE_5_TO_10)) == (EXACT, INSPECT)


def test_an_alternative_that_was_already_given_is_left_out_of_a_remedy() -> None:
    both = LOWER_RATE_2_TO_5_OR_CLIP
    assert one_of_each_topic([both, INSPECT]) == (both, INSPECT)
    assert one_of_each_topic([EXACT, both]) == (EXACT, CLIP_GRADIENTS)
    assert one_of_each_topic([both, CLIP_GRADIENTS]) == (LOWER_RATE_2_TO_5, CLIP_GRADIENTS)


def test_a_warm_up_is_advised_once() -> None:
    assert one_of_each_topic([Remedy(Action.LENGTHEN_WARM_UP), WARM_UP_LEARNING_RATE]) == (WARM_UP_LEARNING_RATE,)


@pytest.mark.parametrize(
    "name", ["learning_rate_too_high", "learning_rate_jump", "no_warm_up", "learning_rate_too_low"]
)
def test_a_remedy_that_would_make_the_cause_worse_is_left_out(name: str) -> None:
    against = causes()[name].remedies
    raises = RAISE_OR_LOWER_RATE
    opposite = LOWER_RATE if name == "learning_rate_too_low" else raises
    other = Remedy(Action.LOOK_FOR_FROZEN_AND_DEAD)
    assert one_of_each_topic(against, (opposite, other)) == (*against, other)
    assert one_of_each_topic((), (opposite, other)) == (opposite, other)


def test_a_remedy_for_both_directions_contradicts_none() -> None:
    against = causes()["guessing"].remedies
    assert one_of_each_topic(against, (LOWER_RATE_2_TO_5,)) == (*against, LOWER_RATE_2_TO_5)


def test_other_remedies_stay_as_they_are() -> None:
    others = (
        Remedy(Action.LOWER_BETA2_OR_CLIP),
        Remedy(Action.LOWER_WEIGHT_DECAY),
        CLIP_GRADIENTS,
        Remedy(Action.CLIP_QUERIES_AND_KEYS),
        Remedy(Action.IN_WORDS, text="Cross your fingers."),
        Remedy(Action.IN_WORDS, text="Wait until Monday."),
    )
    assert one_of_each_topic(others) == others


def test_raising_a_temperature_that_was_not_measured_is_not_advised() -> None:
    why = Cause("sdr_collapse", "")
    collapsed = over_steps("sdr_collapse", Severity.CRITICAL, 1, 1, 1, "", remedies=SdrCollapse.remedies, cause=why)
    assert any(remedy.topic is Topic.TEMPERATURE for remedy in collapsed.remedies)
    (finding,) = with_fitting_remedies([collapsed], run_of(), RunCurves((), (), (), ()))
    assert finding.cause is not None
    assert not any(remedy.topic is Topic.TEMPERATURE for remedy in (*finding.remedies, *finding.cause.remedies))
    assert len(finding.remedies) == len(SdrCollapse.remedies) - 1


@pytest.mark.slow
def test_no_remedy_is_repeated_in_a_report_of_every_finding_and_cause() -> None:
    every = [remedy for kind in KINDS for remedy in documentation(kind).remedies]
    every += [remedy for cause in causes().values() for remedy in cause.remedies]
    kept = one_of_each_topic((), every)
    assert len(set(kept)) == len(kept)
    topics = [remedy.topic for remedy in kept if remedy.topic is not None]
    assert len(set(topics)) == len(topics)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Action.RESTART_BEFORE_STEP, Action.RESTART_FROM_LAST_GOOD),
        (Action.RESTART_BEFORE_STEP, Action.ENABLE_ROLLBACK),
        (Action.INSPECT_BATCH, Action.INSPECT_LOSS_AND_BATCH),
        (Action.TRAIN_IN_BF16, Action.START_LOSS_SCALE),
        (Action.ADD_RESIDUALS_OR_NORMALISE, Action.NORMALISE_OR_ADD_RESIDUALS),
        (Action.CHECK_TEMPERATURE_SCHEDULE, Action.CHECK_SCHEDULE_AT_RESUME),
        (Action.CHECK_INITIALISATION_AND_BIASES, Action.CHECK_INITIALISATION),
    ],
)
def test_two_ways_of_saying_the_same_are_one_remedy(first: Action, second: Action) -> None:
    assert one_of_each_topic([Remedy(first), Remedy(second)]) == (Remedy(first),)


@pytest.mark.parametrize(
    ("ratio", "first"), [(0.0, Action.LOOK_FOR_FROZEN_AND_DEAD), (5e-8, Action.RAISE_LEARNING_RATE)]
)
def test_a_higher_rate_is_not_advised_where_the_updates_are_exactly_zero(ratio: float, first: Action) -> None:
    tiny = Finding.at(TinyUpdateFacts(ratio, 1e-7, in_a_row=5), 20, Severity.WARNING, remedies=UpdateRatioLow.remedies)
    advised = [
        remedy.action for remedy in diagnosis_of(run_of(metric_of("loss", falling(200)), events=[tiny])).remedies
    ]
    assert advised[0] is first
    assert (Action.RAISE_LEARNING_RATE in advised) is (ratio > 0)
