from __future__ import annotations

import pytest
from diagnosis.histories import run_of

from mlflow_stability.detectors.catalog import KINDS, documentation
from mlflow_stability.detectors.inside.sdr_collapse import SdrCollapse
from mlflow_stability.diagnosis.advice.applicable import with_fitting_remedies
from mlflow_stability.diagnosis.advice.remedies import TOPICS, one_of_each
from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.vocabulary.result.cause import Cause
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Severity


def test_of_several_ways_to_lower_the_learning_rate_the_most_exact_stays_in_the_first_place() -> None:
    assert one_of_each(
        (
            "Lower the learning rate, or lengthen the warm-up.",
            "Inspect the batch.",
            "Lower the learning rate by a factor of 2 to 5.",
            "Lower the learning rate to about 0.002, 44 times less.",
            "Lower the learning rate by a factor of 5 to 10.",
        )
    ) == ("Lower the learning rate to about 0.002, 44 times less.", "Inspect the batch.")


def test_of_two_remedies_in_one_the_one_that_was_given_is_left_out() -> None:
    both = "Lower the learning rate by a factor of 2 to 5, or clip gradients at 1.0."
    assert one_of_each([both, "Inspect the batch."]) == (both, "Inspect the batch.")
    assert one_of_each(["Lower the learning rate to 0.1.", both]) == (
        "Lower the learning rate to 0.1.",
        "Clip gradients at 1.0.",
    )
    assert one_of_each([both, "Clip gradients at 1.0."]) == (
        "Lower the learning rate by a factor of 2 to 5.",
        "Clip gradients at 1.0.",
    )


def test_a_warm_up_is_advised_once() -> None:
    warm = "Warm up the learning rate over 1-5 % of the steps."
    assert one_of_each(["Lengthen the learning-rate warm-up.", warm]) == (warm,)


def test_what_would_make_the_cause_worse_is_left_out() -> None:
    raising = ("Raise the learning rate, or lower it by a factor of 10.", "Look for dead units.")
    assert one_of_each(raising, "learning_rate_too_high") == raising[1:]
    assert one_of_each(raising, "guessing") == raising


def test_other_remedies_stay_as_they_are() -> None:
    others = (
        "Lower beta2 or clip gradients; give eps a larger value.",
        "Lower the weight decay.",
        "Clip gradients at 1.0.",
        "Clip the weights of queries and keys when logits are too large (QK-clip).",
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


def test_of_every_finding_and_cause_there_is_no_remedy_is_told_twice_in_one_report() -> None:
    every = [remedy for kind in KINDS for remedy in documentation(kind).remedies]
    every += [remedy for cause in causes().values() for remedy in cause.remedies]
    kept = one_of_each(every)
    assert len(set(kept)) == len(kept)
    for topic in TOPICS:
        assert sum(topic.search(each.lower()) is not None for each in kept) <= 1, topic.pattern


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Restart from a checkpoint before this step.", "Restart from the last good checkpoint."),
        (
            "Restart from a checkpoint before step 402.",
            "Enable rollback=True, or restart from a checkpoint before this step.",
        ),
        ("Inspect the batch at this step.", "Inspect the loss and the batch at this step."),
        ("Train in bf16 instead of fp16.", "Start with a loss scale of 1024 that grows by 1.5 every 200 steps."),
        (
            "Add residual connections, or normalise before each block.",
            "Normalise before each block, or add residual connections.",
        ),
        (
            "Check its schedule, or its learning rate.",
            "Check the learning-rate schedule, above all at its end and after a resume.",
        ),
    ],
)
def test_two_ways_of_saying_the_same_are_one_remedy(first: str, second: str) -> None:
    assert len(one_of_each([first, second])) == 1
