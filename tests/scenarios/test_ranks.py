"""A NaN, a spike and a slow step are reported with the rank that they began on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from probes.ranks.launching import Ended, launch, recorded
from scenarios import ranks_training
from scenarios.ranks_training import NAN_AT, SLOW_AT, SLOW_FROM, SLOW_SECONDS, SPIKE_AT

from mlflow_stability.journal.journal import read_journal
from mlflow_stability.kinds.reported.ranks import RankNonfinite, RankSlowStep, RankSpike, Straggler
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Note

pytestmark = [pytest.mark.scenario, pytest.mark.slow]
SCRIPT = str(Path(ranks_training.__file__))


def trained(processes: int, *arguments: str) -> list[Ended]:
    ended = launch(processes, SCRIPT, *arguments)
    assert [item.code for item in ended] == [0] * processes, ended[0].errors
    return ended


def events(journals: Path, kind: str) -> list[Finding]:
    (journal,) = journals.glob("*/*/journal")
    return [finding for finding in read_journal(journal) if isinstance(finding, Finding) and finding.kind == kind]


def notes(journals: Path) -> dict[str, str]:
    (journal,) = journals.glob("*/*/journal")
    return {point.key: point.value for point in read_journal(journal) if isinstance(point, Note)}


def test_a_nan_on_one_rank_of_four_is_named_and_skipped_everywhere(tmp_path: Path) -> None:
    ended = trained(4, "nan", str(tmp_path), "autopilot")
    assert len({item.printed for item in ended}) == 1, "the weights are the same on all ranks"
    weights = ended[0].printed.split()
    assert [step for step in range(2, len(weights) + 1) if weights[step - 1] == weights[step - 2]] == [NAN_AT]
    (event,) = events(tmp_path, RankNonfinite.kind)
    assert event.step == NAN_AT
    assert f"rank 2 ({socket.gethostname()})" in event.message
    assert "the other ranks were finite" in event.message
    assert notes(tmp_path)["ranks"].startswith("4 ranks: loss and time of each")


def test_where_nothing_is_skipped_the_rank_that_was_first_is_named_once(tmp_path: Path) -> None:
    trained(2, "nan", str(tmp_path), "watched")
    (event,) = events(tmp_path, RankNonfinite.kind)
    assert (event.step, event.metrics["first_rank"]) == (NAN_AT, 0)


def test_a_spike_and_a_slow_step_of_one_rank_of_four_are_named(tmp_path: Path) -> None:
    trained(4, "once", str(tmp_path), "watched")
    host = socket.gethostname()
    (spike,) = events(tmp_path, RankSpike.kind)
    assert (spike.step, spike.metrics["first_rank"], spike.severity) == (SPIKE_AT, 2, Severity.WARNING)
    assert f"Loss spike first on rank 2 ({host}) at step {SPIKE_AT}; no spike on the other ranks" in spike.message
    loss = recorded(tmp_path)[SPIKE_AT]["loss"]
    assert spike.metrics["loss"] > 100 * loss, "which is that of rank 0"
    # A busy machine may have kept any rank waiting at another step as well.
    (slow,) = [event for event in events(tmp_path, RankSlowStep.kind) if event.step == SLOW_AT]
    assert slow.metrics["rank"] == 2
    assert slow.metrics["seconds"] >= SLOW_SECONDS
    text = f"Rank 2 ({host}) took {slow.metrics['seconds']:.3g} s before its backward pass at step {SLOW_AT}, "
    assert text in slow.message
    before, result, _ = notes(tmp_path)["ranks"].partition(f". {text}")
    assert result
    assert f". Loss spike first on rank 2 ({host}) at step {SPIKE_AT}" in before


def test_a_rank_that_the_others_wait_for_is_named_and_losses_are_compared(tmp_path: Path) -> None:
    trained(2, "slow", str(tmp_path), "watched")
    result = events(tmp_path, Straggler.kind)
    assert {item.metrics["rank"] for item in result} == {0}
    assert result[0].step >= SLOW_FROM, "a busy machine may have slowed it down before that as well"
    assert "Rank 0" in result[0].message
    rows = recorded(tmp_path)
    compared = [step for step, row in rows.items() if "loss_ranks_mean" in row]
    assert compared == list(range(10, len(rows) + 1, 10))
    for step in compared:
        row = rows[step]
        assert row["loss_ranks_min"] <= row["loss"] <= row["loss_ranks_max"]
        assert row["loss_ranks_mean"] == pytest.approx((row["loss_ranks_min"] + row["loss_ranks_max"]) / 2)
        assert row["loss_ranks_argmax"] == (0 if row["loss"] == row["loss_ranks_max"] else 1)
