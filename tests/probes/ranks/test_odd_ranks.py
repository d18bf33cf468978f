"""No process ever waits for one that has failed, has no gradients, has fewer batches, or is dead."""

from __future__ import annotations

from pathlib import Path

import pytest
from probes.ranks.launching import Ended, launch, recorded
from probes.ranks.odd_ranks import ODD_AT, STEPS

from mlflow_stability.probes.ranks.rank_exchange import ANSWER_SECONDS

pytestmark = [pytest.mark.scenario, pytest.mark.slow]
SECONDS = 400.0
"""A busy machine takes its time to start processes."""
LONGEST_STEP = 60.0
"""Half of what a process would wait for another one; a step takes a thousandth of it."""
NO_MORE = "Ranks are no longer compared since step"


def trained(odd: str, folder: Path, mode: str) -> tuple[Ended, Ended, dict[int, dict[str, float]]]:
    first, second = launch(2, "odd_ranks.py", odd, str(folder), mode, seconds=SECONDS)
    assert first.code == 0, first.errors
    steps = [float(word) for word in first.printed.split()]
    assert len(steps) == STEPS
    assert max(steps) < min(LONGEST_STEP, ANSWER_SECONDS / 2)
    rows = recorded(folder)
    assert list(rows) == list(range(1, STEPS + 1))
    return first, second, rows


def steps_with(quantity: str, rows: dict[int, dict[str, float]]) -> list[int]:
    return [step for step, row in rows.items() if quantity in row]


def test_a_rank_whose_captures_fail_leaves_and_the_others_continue_alone(tmp_path: Path) -> None:
    first, second, rows = trained("failed", tmp_path, "autopilot")
    assert second.code == 0
    assert len(second.printed.splitlines()) == STEPS
    assert steps_with("grad_norm", rows) == list(range(1, ODD_AT))
    assert steps_with("loss", rows) == list(rows)
    assert first.errors.count(NO_MORE) == 1
    assert "switched off in another process" in first.errors


def test_a_rank_whose_weights_cannot_be_measured_removes_only_weights_from_all(tmp_path: Path) -> None:
    first, second, rows = trained("norms", tmp_path, "autopilot")
    assert second.code == 0
    assert steps_with("grad_norm", rows) == list(rows)
    assert steps_with("param_norm", rows) == [2, 4]
    assert NO_MORE not in first.errors


def test_a_rank_without_gradients_takes_part(tmp_path: Path) -> None:
    _, second, rows = trained("none", tmp_path, "watched")
    assert second.code == 0
    assert steps_with("grad_norm", rows) == list(rows)
    assert steps_with("param_norm", rows) == [2, 4, 10, 20]


def test_a_rank_with_fewer_batches_does_not_block_the_others(tmp_path: Path) -> None:
    first, second, rows = trained("uneven", tmp_path, "autopilot")
    assert second.code == 0
    assert len(second.printed.splitlines()) == ODD_AT
    assert steps_with("grad_norm", rows) == list(rows)
    assert NO_MORE not in first.errors


def test_ranks_that_are_out_of_step_notice_it_and_continue_alone(tmp_path: Path) -> None:
    first, second, rows = trained("extra", tmp_path, "autopilot")
    assert second.code == 0
    assert len(second.printed.splitlines()) == STEPS
    assert steps_with("grad_norm", rows) == list(range(1, ODD_AT))
    assert first.errors.count(NO_MORE) == 1
    assert "processes make different steps" in first.errors


def test_a_killed_rank_does_not_block_the_others(tmp_path: Path) -> None:
    first, second, rows = trained("killed", tmp_path, "watched")
    assert second.code == -9
    assert steps_with("loss", rows) == list(rows)
    assert first.errors.count(NO_MORE) == 1
    assert "has ended, or its connection is lost" in first.errors
