from __future__ import annotations

from diagnosis.histories import run_of

from mlflow_stability.detectors.sdr_collapse import SdrCollapse
from mlflow_stability.diagnosis.fitting_remedies import with_fitting_remedies
from mlflow_stability.diagnosis.remedy_topics import one_of_each
from mlflow_stability.vocabulary.cause import Cause
from mlflow_stability.vocabulary.episode import Episode
from mlflow_stability.vocabulary.event import Severity


def test_of_several_ways_to_lower_the_learning_rate_the_most_exact_stays_in_the_first_place() -> None:
    assert one_of_each(
        (
            "Lower the learning rate, or lengthen the warm-up.",
            "Look at the batch.",
            "Lower the learning rate 2-5 times.",
            "Lower the learning rate to about 0.002, 44 times less.",
            "Lower the learning rate 5-10 times.",
        )
    ) == ("Lower the learning rate to about 0.002, 44 times less.", "Look at the batch.")


def test_of_two_remedies_in_one_the_one_that_was_given_is_left_out() -> None:
    both = "Lower the learning rate 2-5 times, or clip gradients at 1.0."
    assert one_of_each([both, "Look at the batch."]) == (both, "Look at the batch.")
    assert one_of_each(["Lower the learning rate to 0.1.", both]) == (
        "Lower the learning rate to 0.1.",
        "Clip gradients at 1.0.",
    )
    assert one_of_each([both, "Clip gradients at 1.0."]) == (
        "Lower the learning rate 2-5 times.",
        "Clip gradients at 1.0.",
    )


def test_a_warm_up_is_advised_once() -> None:
    warm = "Warm the learning rate up over 1-5 % of the steps."
    assert one_of_each(["Warm the learning rate up longer.", warm]) == (warm,)


def test_what_would_make_the_cause_worse_is_left_out() -> None:
    raising = ("Raise the learning rate, or lower it ten times.", "Look for dead units.")
    assert one_of_each(raising, "learning_rate_too_high") == raising[1:]
    assert one_of_each(raising, "guessing") == raising


def test_other_remedies_stay_as_they_are() -> None:
    others = (
        "Lower beta2 or clip gradients; give eps a larger value.",
        "Lower the weight decay.",
        "Clip gradients at 1.0.",
        "Clip the weights of queries and keys when scores are too large (QK-clip).",
    )
    assert one_of_each(others) == others


def test_nobody_is_told_to_raise_a_temperature_that_was_not_measured() -> None:
    why = Cause("sdr_collapse", "")
    collapsed = Episode("sdr_collapse", Severity.CRITICAL, 1, 1, 1, "", remedies=SdrCollapse.remedies, cause=why)
    assert any("temperature" in each for each in collapsed.remedies)
    (found,) = with_fitting_remedies([collapsed], run_of())
    assert found.cause is not None
    assert not any("temperature" in each for each in (*found.remedies, *found.cause.remedies))
    assert len(found.remedies) == len(SdrCollapse.remedies) - 1
