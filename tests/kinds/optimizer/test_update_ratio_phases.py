from __future__ import annotations

import numpy as np
import pytest
from detectors.series import Floats, judged

STEPS = 200
RATIOS = np.full(STEPS, 1e-3)


def decaying(group: str = "") -> dict[str, Floats]:
    rates = np.concatenate([np.full(STEPS // 2, 1e-3), np.full(STEPS // 2, 1e-4)])
    return {f"learning_rate{group}": rates}


def raised(first: int, value: float) -> Floats:
    changed = RATIOS.copy()
    changed[first:] = value
    return changed


def test_in_the_decay_a_smaller_ratio_is_high() -> None:
    (event,) = judged("update_ratio_high", **decaying(), update_ratio=raised(120, 0.05))
    assert event.step == 122
    assert "threshold 0.03 in the decay of the learning rate" in event.message


@pytest.mark.parametrize("first", [20, 60])
def test_before_the_decay_the_same_ratio_is_not(first: int) -> None:
    rates = {"learning_rate": np.full(STEPS, 1e-3)}
    assert judged("update_ratio_high", **rates, update_ratio=raised(first, 0.05)) == []


def test_after_the_warm_up_the_threshold_is_lower_than_in_it() -> None:
    rates = {"learning_rate": np.full(STEPS, 1e-3)}
    (event,) = judged("update_ratio_high", **rates, update_ratio=raised(60, 0.08))
    assert event.step == 102  # the third measurement after the first hundred steps
    assert "threshold 0.06 after the warm-up" in event.message
    assert event.metrics["limit"] == 0.06


def test_while_the_learning_rate_rises_it_is_the_warm_up() -> None:
    rising = {"learning_rate": np.linspace(1e-5, 1e-3, STEPS)}
    assert judged("update_ratio_high", **rising, update_ratio=raised(120, 0.08)) == []
    (event,) = judged("update_ratio_high", **rising, update_ratio=raised(120, 0.2))
    assert "threshold 0.1 in the warm-up" in event.message


def test_a_warm_up_from_zero_is_a_warm_up() -> None:
    rates = np.concatenate([np.zeros(50), np.linspace(0, 1e-3, STEPS - 50)])
    assert judged("update_ratio_high", learning_rate=rates, update_ratio=raised(20, 0.08)) == []


def test_without_a_learning_rate_there_is_one_threshold() -> None:
    assert judged("update_ratio_high", update_ratio=raised(120, 0.05)) == []
    assert len(judged("update_ratio_high", update_ratio=raised(120, 0.2))) == 1


def test_a_group_that_is_slower_by_design_is_not_in_its_decay() -> None:
    rates = {"learning_rate@group_0": np.full(STEPS, 1e-3), "learning_rate@group_1": np.full(STEPS, 1e-5)}
    assert judged("update_ratio_high", **rates, update_ratio=raised(120, 0.05)) == []


@pytest.mark.parametrize(("lasts", "number"), [(9, 0), (30, 1)])
def test_the_first_steps_of_a_model_that_is_trained_after_another_do_not_count(lasts: int, number: int) -> None:
    second = [None] * 150 + [0.8] * lasts + [1e-3] * (STEPS - 150 - lasts)
    rates = {"learning_rate": np.full(STEPS, 1e-3), "learning_rate@optimizer_1": [None] * 150 + [1e-3] * 50}
    series = {"update_ratio": [1e-3] * 150 + [None] * 50, "update_ratio@track_second": second}
    findings = judged("update_ratio_high", **rates, **series)
    assert [finding.where.place for finding in findings] == ["track_second"] * number
