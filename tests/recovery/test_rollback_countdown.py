from __future__ import annotations

from collections.abc import Sequence

import pytest

from mlflow_stability.detectors.detector import Point
from mlflow_stability.kinds.loss.divergence import DivergenceClassic
from mlflow_stability.recovery.rollback_events import ROWS_ALWAYS_ANNOUNCED, RollbackCountdown, countdown_of
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

POLICY = RollbackPolicy(divergence_threshold=2.0)


def countdown(policy: RollbackPolicy = POLICY) -> RollbackCountdown:
    made = countdown_of(policy)
    assert made is not None
    return made


def lines(losses: Sequence[float], counting: RollbackCountdown | None = None) -> list[str]:
    counting = counting or countdown()
    result = [counting.line(step, loss) for step, loss in enumerate(losses, 1)]
    return [line for line in result if line]


def test_the_first_high_loss_is_announced_with_what_follows() -> None:
    (line,) = lines([1.0] * 30 + [2.1, 2.2, 2.3, 2.4])
    assert line.startswith("loss 2.1 at step 31, 2.1 times its mean of 1: 1 of 3 consecutive steps; rollback at 3 (")


def test_an_announcement_is_taken_back_where_the_loss_falls_before_the_last_step() -> None:
    assert lines([1.0] * 30 + [3.0, 3.0, 1.0, 1.0])[1:] == [
        "loss 1 at step 33, below the threshold again: no rollback."
    ]


def test_after_the_finding_nothing_is_taken_back() -> None:
    assert len(lines([1.0] * 30 + [3.0, 3.0, 3.0, 1.0])) == 1


def test_the_last_step_of_the_countdown_is_that_of_the_finding() -> None:
    losses = [1.0, 1.1] * 20 + [2.6, 2.5, 2.7, 2.9]
    detector, result, state = DivergenceClassic(2.0, 3), [], DivergenceClassic().begin()
    for step, loss in enumerate(losses, 1):
        state, finding = detector.step(state, Point("loss", "", step, loss))
        result += [step] if finding is not None else []
    counting = countdown()
    announced = [step for step, loss in enumerate(losses, 1) if "1 of 3" in counting.line(step, loss)]
    assert result == [announced[0] + 2]


def test_a_noisy_loss_is_announced_less_and_less_often() -> None:
    rows = 64
    result = lines(([1.0] * 30 + [3.0]) * rows + [1.0])
    announced = [line for line in result if "1 of 3" in line]
    assert ROWS_ALWAYS_ANNOUNCED < len(announced) <= ROWS_ALWAYS_ANNOUNCED + 5
    assert len(result) == 2 * len(announced)


def test_after_a_rollback_losses_are_new() -> None:
    counting = countdown()
    lines([1.0] * 30 + [3.0], counting)
    counting.restart()
    assert lines([3.0] * 10, counting) == []


@pytest.mark.parametrize(
    "policy",
    [
        RollbackPolicy(),
        RollbackPolicy(max_rollbacks=0, divergence_threshold=2.0),
        RollbackPolicy(divergence_threshold=2.0, consecutive_divergence_steps=1),
        RollbackPolicy(divergence_threshold=2.0, rollback_on=("nan_detected",)),
    ],
)
def test_there_is_no_countdown_where_no_row_of_high_losses_leads_to_a_rollback(policy: RollbackPolicy) -> None:
    assert countdown_of(policy) is None
