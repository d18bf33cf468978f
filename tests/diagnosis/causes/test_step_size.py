"""Steps that were far too large, and how far the learning rate has to come down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step, changed

from mlflow_stability.diagnosis.causes.step_size import lower_by
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.first_look.loss_function import LossSum, LossSumFacts
from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.vocabulary.result import Action, Finding, Severity, Topic
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 200


def updates(values: list[float], steps: list[int]) -> Metric:
    return metric_of("update_ratio", values, meaning=Meaning("update_ratio", "", is_known=True), steps=np.array(steps))


def run_with(
    losses: np.ndarray, *more: Metric, rate: float = 8.0, optimizer: str = "SGD", named: bool = True
) -> RunHistory:
    rates = (metric_of("learning_rate", np.full(len(losses), rate)),) if named else ()
    return run_of(metric_of("loss", losses), *rates, *more, params={"stability.optimizer": optimizer})


def exploding() -> np.ndarray:
    losses = np.full(COUNT, np.nan)
    losses[:12] = [2.31, 2.39, 2.33, 2.57, 2.25, 2.78, 6.2, 159, 3.9e5, 2.2e12, 2.1e25, 1e38]
    return losses


def leaving_at_once() -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, 0.3, COUNT)
    return np.r_[3.638, 11.8, 23.7, 40 * np.exp(noise)][:COUNT]


def test_a_loss_that_explodes_on_huge_updates_has_too_high_a_rate_and_not_a_missing_warm_up() -> None:
    diagnosis = diagnosis_of(run_with(exploding(), updates([0.25, 0.36, 0.617, 8e5], [0, 1, 3, 9])))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.certainty) == ("learning_rate_too_high", "likely")
    assert "rate of 8 is far too high: the update at step 3 changed the weights by 62% of" in diagnosis.cause.statement
    assert str(diagnosis.remedies[0]) == "Lower the learning rate from 8 to about 0.1, 62 times less."
    assert [remedy for remedy in diagnosis.remedies if remedy.topic is Topic.LOWER_RATE] == [diagnosis.remedies[0]]


@pytest.mark.parametrize("named", [True, False])
def test_an_update_after_the_loss_has_left_its_start_is_not_the_one_that_is_named(named: bool) -> None:
    diagnosis = diagnosis_of(run_with(leaving_at_once(), updates([4.43, 70.0], [0, 9]), rate=1.0, named=named))
    assert diagnosis.cause is not None
    assert "changed the weights by 4.4 times their norm" in diagnosis.cause.statement
    less = "from 1 to about 0.002, 440 times less" if named else "by a factor of about 440"
    assert str(diagnosis.remedies[0]) == f"Lower the learning rate {less}."


def test_without_measured_updates_the_usual_limit_of_the_optimizer_sets_the_advised_rate() -> None:
    diagnosis = diagnosis_of(run_with(leaving_at_once(), rate=1.0, optimizer="AdamW"))
    assert diagnosis.cause is not None
    assert "rarely tolerates learning rates above 0.01" in diagnosis.cause.statement
    assert str(diagnosis.remedies[0]) == "Lower the learning rate from 1 to about 0.01, 100 times less."


def test_normal_first_updates_do_not_change_the_cause_from_a_missing_warm_up() -> None:
    diagnosis = diagnosis_of(run_with(exploding(), updates([0.02, 0.03], [0, 1])))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "no_warm_up"


def test_a_huge_first_update_that_training_recovered_from_is_not_the_cause() -> None:
    losses = falling(COUNT, first=2.3, last=0.3)
    losses[28:] = 9.0
    diagnosis = diagnosis_of(run_with(losses, updates([5.0, 0.01, 0.01], [0, 1, 3]), rate=0.1))
    assert diagnosis.cause is None or "changed the weights" not in diagnosis.cause.statement


def test_huge_updates_at_the_start_are_not_the_cause_of_what_comes_much_later() -> None:
    losses = falling(COUNT)
    losses[120:] *= 1 + np.minimum(4, np.arange(COUNT - 120) / 10)
    diagnosis = diagnosis_of(run_with(losses, updates([0.5, 0.001], [0, 100]), rate=3e-4))
    assert diagnosis.outcome == "diverged"
    assert diagnosis.cause is None


@pytest.mark.parametrize(
    ("rate", "factor", "expected"),
    [
        (8.0, 61.7, "from 8 to about 0.1, 62 times less."),
        (1.0, 443.2, "from 1 to about 0.002, 440 times less."),
        (0.02, 2.0, "from 0.02 to about 0.01, 2 times less."),
        (None, 7.75e7, "by a factor of about 78,000,000."),
    ],
)
def test_the_advised_reduction_is_given_in_round_numbers(rate: float | None, factor: float, expected: str) -> None:
    assert str(lower_by(rate, factor)) == f"Lower the learning rate {expected}"


def test_a_training_that_was_rolled_back_at_once_has_too_high_a_rate_and_the_rate_that_was_stable() -> None:
    losses = np.r_[39.3, 2e3, 4e6, 4e10, falling(COUNT - 4, first=39.3, last=0.1)]
    facts = StartFacts(4e10, 39.3, 75.0, 1, 3, 3.0)
    diverged = changed(at_step(3, "divergence", Severity.CRITICAL, "loss 4e10."), metric="loss", facts=facts)
    back = RollbackFacts("loss 4e10.", 0, 1, 4, 0.1, 1, learning_rate=0.5, learning_rate_share=0.0625)
    history = replace(
        run_with(losses, updates([75.0, 33.0, 0.01], [0, 3, 9]), rate=1.0),
        events=(diverged, Finding.at(back, 3, Severity.INFO)),
    )
    diagnosis = diagnosis_of(history)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_too_high"
    assert "the update at step 0 changed the weights by 75 times their norm" in diagnosis.cause.statement
    assert str(diagnosis.remedies[0]) == "Lower the learning rate from 1 to 0.062, which was stable."


def test_a_rate_that_was_lowered_for_good_is_too_high_and_needs_no_warm_up() -> None:
    losses = np.r_[falling(5, first=4, last=3), 50, 60, 70, falling(COUNT - 8, first=4, last=0.1)]

    def cause_after(share: float | None) -> str:
        diverged = at_step(7, "divergence", Severity.CRITICAL, "loss 70.", facts=StartFacts(70.0, 4.0, 0.05, 5, 3, 3.0))
        back = RollbackFacts("loss 70.", 0, 5, 8, 0.1, 1, learning_rate=0.05, learning_rate_share=share)
        events = (changed(diverged, metric="loss"), Finding.at(back, 7, Severity.INFO))
        diagnosis = diagnosis_of(replace(run_with(losses, updates([0.03, 0.05], [0, 3]), rate=1.0), events=events))
        assert diagnosis.cause is not None
        first = str(diagnosis.remedies[0]) if diagnosis.remedies else ""
        return f"{diagnosis.cause.name}: {first}"

    assert cause_after(0.1) == "learning_rate_too_high: Lower the learning rate from 1 to 0.1, which was stable."
    assert cause_after(None).startswith("no_warm_up: Warm up the learning rate")


def test_first_updates_after_which_there_are_no_gradients_show_too_high_a_rate() -> None:
    losses = np.full(COUNT, 2.303)
    losses[:4] = [2.301, 2.325, 2.295, 2.332]
    norms = np.r_[np.full(12, 0.1), np.zeros(COUNT - 12)]
    ended = run_with(losses, updates([0.17, 0.02, 0.0], [0, 10, 20]), metric_of("grad_norm", norms), rate=3.0)
    diagnosis = diagnosis_of(ended)
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "learning_rate_too_high"
    assert "From step 12 on there are no gradients" in diagnosis.cause.statement
    assert str(diagnosis.remedies[0]) == "Lower the learning rate from 3 to about 0.2, 17 times less."


def test_a_rate_that_killed_the_gradients_of_a_sum_is_answered_by_a_mean_as_well() -> None:
    losses = np.full(COUNT, 2.303)
    losses[:4] = [2.301, 2.325, 2.295, 2.332]
    norms = np.r_[np.full(12, 0.1), np.zeros(COUNT - 12)]
    ended = run_with(losses, updates([0.17, 0.02, 0.0], [0, 10, 20]), metric_of("grad_norm", norms), rate=3.0)
    summed = Finding.at(LossSumFacts(64), 1, Severity.INFO, remedies=LossSum.remedies)
    diagnosis = diagnosis_of(replace(ended, events=[summed]))
    assert diagnosis.cause is not None
    assert diagnosis.cause.statement.endswith(summed.message)
    assert [remedy.action for remedy in diagnosis.remedies[:2]] == [Action.LOWER_LEARNING_RATE, Action.AVERAGE_LOSS]


def test_steps_that_were_too_small_are_answered_by_a_higher_rate_alone() -> None:
    losses = 4.17 + np.random.default_rng(0).normal(0, 0.01, COUNT)
    small = run_with(
        losses, updates([1e-6] * 20, list(range(0, COUNT, 10))), metric_of("grad_norm", np.ones(COUNT)), rate=1e-5
    )
    diagnosis = diagnosis_of(small)
    assert diagnosis.cause is not None
    assert "moved the weights by at most 0.02% of their norm" in diagnosis.cause.statement
    assert str(diagnosis.remedies[0]) == "Raise the learning rate from 1e-05 to about 0.01, 1,000 times more."
    assert [remedy for remedy in diagnosis.remedies if "ower" in str(remedy)] == []
