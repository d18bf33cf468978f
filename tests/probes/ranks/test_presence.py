"""A script that calls `autolog()` on its first rank only trains on, and waits for no process that is not watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from probes.ranks.launching import launch, recorded
from probes.ranks.one_watched import STEPS

from mlflow_stability.probes.ranks.rank_exchange import VERDICT_SECONDS

pytestmark = [pytest.mark.scenario, pytest.mark.slow]
SECONDS = 400.0
"""A busy machine takes its time to start processes."""
LONGEST_STEP = VERDICT_SECONDS / 2
"""Half of what a process would wait for the verdict of one that does not come."""


@pytest.mark.parametrize(("way", "mode"), [("fsdp2", "watched"), ("ddp", "autopilot")])
def test_one_watched_process_does_not_wait_for_the_others(way: str, mode: str, tmp_path: Path) -> None:
    first, second = launch(2, "one_watched.py", way, str(tmp_path), mode, seconds=SECONDS)
    assert (first.code, second.code) == (0, 0), first.errors
    assert len(first.printed.splitlines()) == len(second.printed.splitlines()) == STEPS
    assert max(float(word) for word in (first.printed + second.printed).split()) < LONGEST_STEP
    rows = recorded(tmp_path)
    assert list(rows) == list(range(1, STEPS + 1))
    assert all("loss" in row and "loss_ranks_mean" not in row for row in rows.values())
    assert first.errors.count("autolog() was called on some") == (0 if (way, mode) == ("ddp", "watched") else 1)


def test_where_one_process_has_no_autopilot_ranks_are_compared_and_no_step_is_skipped(tmp_path: Path) -> None:
    first, second = launch(2, "one_watched.py", "ddp", str(tmp_path), "mixed", seconds=SECONDS)
    assert (first.code, second.code) == (0, 0), first.errors + second.errors
    assert max(float(word) for word in (first.printed + second.printed).split()) < LONGEST_STEP
    assert "loss_ranks_mean" in recorded(tmp_path)[10]
    assert first.errors.count("without guard and rollback: call it on every rank") == 1
