"""Which of several processes ended first."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

from mlflow_stability.courier.processes import RankProcesses, rank_died
from mlflow_stability.journal.layout import RankProcess, read_ranks, write_ranks
from mlflow_stability.journal.process_identity import identity_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nobody else is told of the end of a process")


def started(folder: Path, count: int) -> list[subprocess.Popen[bytes]]:
    ranks = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(count)]
    write_ranks(
        folder, [RankProcess(f"rank {at} (here)", identity_of(process.pid)) for at, process in enumerate(ranks)]
    )
    return ranks


def end(process: subprocess.Popen[bytes]) -> None:
    with process:  # closes the pipe, and waits
        process.kill()


def test_the_first_that_ended_is_named_with_how_long_before(tmp_path: Path) -> None:
    ranks, watched = started(tmp_path, 3), RankProcesses(tmp_path)
    watched.look()
    assert watched.first_end() == []
    end(ranks[2])
    wait_until(watched.first_end, 10)
    (alone,) = watched.first_end()
    assert (alone.name, alone.before) == ("rank 2 (here)", 0.0)
    time.sleep(0.05)
    for rank in ranks:
        end(rank)
    wait_until(lambda: watched.first_end()[0].before, 10)
    (first,) = watched.first_end()
    assert first.name == "rank 2 (here)"
    assert first.before >= 0.05


def test_no_other_rank_is_named_where_rank_0_ended_first(tmp_path: Path) -> None:
    ranks, watched = started(tmp_path, 2), RankProcesses(tmp_path)
    watched.look()
    for rank in ranks:
        end(rank)
        time.sleep(0.1)
    assert watched.first_end() == []


def test_no_rank_is_named_for_a_training_that_ended_normally(tmp_path: Path) -> None:
    ranks, watched = started(tmp_path, 2), RankProcesses(tmp_path)
    watched.look()
    end(ranks[1])
    wait_until(watched.first_end, 10)
    end(ranks[0])
    ended = watched.first_end()
    assert rank_died(Closing("finished"), 0, ended, restarts=False) is None
    died = rank_died(Closing("killed"), 0, ended, restarts=False)
    assert died is not None
    assert died.severity is Severity.WARNING
    assert died.message.startswith("Rank 1 (here) ended first: after step 0, at ")


def test_no_other_ranks_are_read_from_a_missing_or_damaged_file(tmp_path: Path) -> None:
    assert read_ranks(tmp_path) == []
    (tmp_path / "ranks.json").write_text('{"torn":')
    assert read_ranks(tmp_path) == []
