"""Which points of a loss a rollback undid, and what the state gave that it restored."""

from __future__ import annotations

import numpy as np
import pytest

from mlflow_stability.curves.curves import Curve
from mlflow_stability.diagnosis.findings.attempts import kept_points, restored_level

LOSSES = np.linspace(6.0, 0.6, 600)
FALLS = Curve("loss", "loss", "", 0, np.arange(600), LOSSES)
UNDONE = {0: ((100, 150), (400, 450))}


@pytest.mark.parametrize(("since", "state"), [(None, 400), (150, 100), (101, 100), (401, 400)])
def test_the_level_after_a_rollback_is_that_of_the_state_that_it_restored(since: int | None, state: int) -> None:
    assert restored_level(FALLS, UNDONE, since) == pytest.approx(LOSSES[state], rel=0.1)


@pytest.mark.parametrize("since", [100, 151, 451])
def test_trouble_that_no_rollback_answered_has_no_restored_level(since: int) -> None:
    assert restored_level(FALLS, UNDONE, since) is None


def test_the_steps_after_the_restored_state_are_undone_up_to_the_rollback() -> None:
    assert sorted(set(range(600)) - set(kept_points(FALLS, UNDONE).steps.tolist())) == [
        *range(101, 151),
        *range(401, 451),
    ]
