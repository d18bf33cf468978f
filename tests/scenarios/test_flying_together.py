"""Several processes train together: what one skips all skip, and going back is one return for all of them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from forked.processes import Process
from mlflow import MlflowClient
from scenarios.sharded_flight import NAN_AT, STEPS
from scenarios.test_several_processes import finish, start
from servers.ports import free_port

import mlflow_stability
from mlflow_stability.journal.journal import read_journal
from mlflow_stability.recovery.checkpoints.stored_checkpoints import damage_of, listing
from mlflow_stability.vocabulary.result import Finding

pytestmark = [pytest.mark.scenario, pytest.mark.slow]
OFFLINE = {"MLFLOW_STABILITY_OFFLINE": "1"}
"""Settings for runs that nothing is read from, so that they need no delivery."""


def started(
    trouble: str, uri: str, folder: Path, script: str = "ddp_flight.py", ranks: int = 2, *more: str, **environment: str
) -> list[Process]:
    together = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **environment}
    arguments = trouble, str(folder / "journals"), *more
    return [start(script, *arguments, uri=uri, RANK=str(rank), **together) for rank in range(ranks)]


def both(trouble: str, uri: str, folder: Path, **environment: str) -> list[list[list[float]]]:
    return [finish(process) for process in started(trouble, uri, folder, **environment)]


def numbers(printed: str) -> list[list[float]]:
    return [[float(word) for word in line.split()] for line in printed.splitlines()]


def weights(rows: list[list[float]]) -> list[float]:
    return [row[1] for row in rows]


def test_a_nan_on_one_rank_is_skipped_on_both(sqlite_uri: str, tmp_path: Path) -> None:
    first, second = both("nan", sqlite_uri, tmp_path)
    assert weights(first) == weights(second)
    same = [row[0] for before, row in itertools.pairwise(first) if before[1] == row[1]]
    assert same == [150.0]
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id, tracking_uri=sqlite_uri)
    assert list(record["skipped_steps"])[-1] == 1


def test_what_the_script_writes_into_buffers_is_the_same_on_both_after_a_skipped_step(
    sqlite_uri: str, tmp_path: Path
) -> None:
    first, second = both("buffers", sqlite_uri, tmp_path, **OFFLINE)
    assert weights(first[:-1]) == weights(second[:-1])
    steps = float(len(first) - 1)
    assert first[-1] == second[-1] == [steps, steps - 1, 0.0]


def test_smaller_steps_are_those_of_both(sqlite_uri: str, tmp_path: Path) -> None:
    first, second = both("smaller", sqlite_uri, tmp_path)
    assert weights(first) == weights(second)
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    diagnosis = mlflow_stability.diagnose(run.info.run_id, tracking_uri=sqlite_uri)
    messages = [finding.message for finding in diagnosis.findings if finding.kind == "smaller_steps"]
    assert [text.split()[0] for text in messages] == ["Reset", "Learning"]


def test_a_return_is_one_for_both(sqlite_uri: str, tmp_path: Path) -> None:
    ranks = [item.communicate(timeout=240) for item in started("jump", sqlite_uri, tmp_path)]
    first, second = (numbers(printed) for printed, _ in ranks)
    assert weights(first) == weights(second)
    (_, text), (_, other) = ranks
    assert text.count("Rolled back from step ") == 1
    assert "divergence: " not in text, "what was done about it says it"
    assert "mlflow-stability: " not in other
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    record = mlflow_stability.load_run(run.info.run_id, tracking_uri=sqlite_uri)
    assert max(record["rollbacks"].dropna()) >= 1
    assert sum(row[2] for row in first[-20:]) / 20 < 0.1


def test_where_the_data_has_changed_both_get_their_weights_of_before_the_rollback_back(
    sqlite_uri: str, tmp_path: Path
) -> None:
    ranks = [item.communicate(timeout=240) for item in started("changed", sqlite_uri, tmp_path)]
    first, second = (numbers(printed) for printed, _ in ranks)
    assert weights(first) == weights(second)
    (_, text), (_, other) = ranks
    assert text.count("Rolled back from step ") == text.count("data_changed: ") == 1
    assert "mlflow-stability: " not in other
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    diagnosis = mlflow_stability.diagnose(run.info.run_id, tracking_uri=sqlite_uri)
    (finding,) = [finding for finding in diagnosis.findings if finding.kind == "data_changed"]
    # The weights of the step of the rollback were replaced within it: what came back is seen by what follows.
    before, after = first[int(finding.metrics["target"]) - 2], first[finding.start + 1]
    assert after[2] < before[2]
    assert sum(row[2] for row in first[-20:]) / 20 < 0.5


def test_a_guard_that_fails_on_one_rank_is_off_on_both_and_training_goes_on(sqlite_uri: str, tmp_path: Path) -> None:
    first, second = both("fail", sqlite_uri, tmp_path, **OFFLINE)
    assert len(first) == 260
    assert weights(first) == weights(second)


@pytest.mark.parametrize(
    ("trouble", "expected", "why"),
    [
        # States will come again: this trouble alone is not answered.
        ("lost", "give_up: No rollback at step", "No good state fits the training as it is now (it is refused in"),
        ("half", "give_up: Rollback from step", "it failed in another process of this training"),
    ],
)
def test_where_one_rank_cannot_go_back_none_does_and_none_tries_again(
    sqlite_uri: str, tmp_path: Path, trouble: str, expected: str, why: str
) -> None:
    ranks = started(trouble, sqlite_uri, tmp_path, **OFFLINE)
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    first, second = (numbers(printed) for printed, _ in outputs)
    assert len(first) == 260
    assert weights(first) == weights(second)
    rows = [row[1] for row in first]
    assert len(set(rows)) == len(rows), "no state came back"
    assert outputs[0][1].count("give_up: ") == outputs[0][1].count(expected) == 1
    assert why in outputs[0][1]


def test_one_rank_may_ask_to_skip_and_going_back_when_asked_is_one_return_for_both(
    sqlite_uri: str, tmp_path: Path
) -> None:
    first, second = both("asked", sqlite_uri, tmp_path, **OFFLINE)
    assert weights(first) == weights(second)
    same = [row[0] for before, row in itertools.pairwise(first) if before[1] == row[1]]
    assert same == [150.0]
    by_key = {row[1]: row[0] for row in first[:169]}
    assert [by_key[row[1]] for row in first[169:] if row[1] in by_key], "the weights of an earlier step came back"


@pytest.mark.parametrize("trouble", ["stop", "stop-last-bare"])
def test_a_training_that_is_stopped_ends_on_all_ranks_before_the_step(
    sqlite_uri: str, tmp_path: Path, trouble: str
) -> None:
    ranks = started(trouble, sqlite_uri, tmp_path, **OFFLINE)
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], outputs
    assert all("TrainingDiverged: Training stopped before step 150 was taken" in errors for _, errors in outputs)
    assert all("(stop_on=loss>50)" in errors for _, errors in outputs)
    assert ("met on rank 1" in outputs[0][1]) == ("last" in trouble)
    first, second = (numbers(printed) for printed, _ in outputs)
    assert weights(first) == weights(second)
    assert [row[0] for row in first[-2:]] == [149, 150]
    assert first[-1][1] == first[-2][1] != first[-3][1], "the weights are those of before the step"
    (folder,) = (tmp_path / "journals" / "checkpoints").iterdir()
    assert list(folder.glob("rollback_ckpt-*")), "the last good state is kept, once"


@pytest.mark.parametrize(("way", "trouble"), [("fsdp2", "half"), ("zero", "jump")])
def test_a_state_split_over_four_processes_is_skipped_and_rolled_back_on_all_or_none(
    sqlite_uri: str, tmp_path: Path, way: str, trouble: str
) -> None:
    ranks = started(trouble, sqlite_uri, tmp_path, "sharded_flight.py", 4, way, **OFFLINE)
    outputs = [rank.communicate(timeout=400) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, outputs
    rows = [numbers(printed) for printed, _ in outputs]
    first = rows[0]
    assert len(first) == STEPS
    assert all(weights(item) == weights(first) for item in rows), "all ranks have the same weights, bit for bit"
    for item in rows:
        same = [row[0] for before, row in itertools.pairwise(item) if before[1:4:2] == row[1:4:2]]
        assert same == [NAN_AT], "neither weights nor the rank's optimizer state were changed, on any rank"
    if trouble == "half":
        values = [row[1] for row in first if row[0] != NAN_AT]
        assert len(set(values)) == len(values), "no state came back, on any rank"
        assert outputs[0][1].count("give_up: Rollback from step") == 1
    else:
        (back,) = re.findall(r"Rolled back from step (\d+) to step (\d+)", outputs[0][1])
        left, target = map(int, back)
        assert all(item[left - 1][1:4:2] == item[target - 1][1:4:2] for item in rows), "the state came back on all"
        assert sum(row[2] for row in first[-20:]) / 20 < 0.1, "the jump of the learning rate is survived"
        assert not any("switched off" in errors for _, errors in outputs)
    assert outputs[0][1].count("4 of 4 trained parameters are split over processes") == (way == "fsdp2")
    assert not any("trained parameters are split" in errors for _, errors in outputs[1:])
    if way == "zero":
        assert outputs[0][1].count("Call consolidate_state_dict() of ZeroRedundancyOptimizer on every rank") == 1
        return
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    good = [item for item in listing(directory) if item.is_good]
    assert good, "all processes write checkpoints together"
    assert not any(damage_of(item) for item in good)


def test_an_early_sign_of_divergence_acts_on_both_ranks_of_a_sharded_model(sqlite_uri: str, tmp_path: Path) -> None:
    ranks = started("ahead", sqlite_uri, tmp_path, "sharded_flight.py", 2, "fsdp2", MLFLOW_STABILITY_OFFLINE="1")
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    rows = [numbers(printed) for printed, _ in outputs]
    assert weights(rows[0]) == weights(rows[1])
    (journal,) = (tmp_path / "journals").glob("*/*/journal")
    events = [finding for finding in read_journal(journal) if isinstance(finding, Finding)]
    (event,) = [event for event in events if event.kind == "smaller_steps"]
    assert event.message.startswith("All ranks write a checkpoint after the next step. Learning rate starts at 0.5 ")
    for item in rows:
        shares = [row[4] for row in item]
        assert shares[: event.step] == pytest.approx([1.0] * event.step, abs=0.01)
        assert shares[event.step] == pytest.approx(0.5, abs=0.01), "each rank halved the learning rate of its shards"
    (directory,) = (tmp_path / "journals" / "checkpoints").iterdir()
    (written,) = listing(directory)
    assert written.step == event.step + 1
    assert written.is_good
    assert not damage_of(written)
