from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from recovery.restorable import OPTIMIZERS, Training
from waiting import wait_until

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.checkpoint_writer import CheckpointCadence, CheckpointWriter
from mlflow_stability.recovery.checkpoints.stored_checkpoints import listing
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

POLICY = RollbackPolicy(rollback_checkpoint_interval=500, healthy_after=50)


def is_finite(copy: StateCopy) -> bool:
    return copy.not_finite() <= {"mask"}


def state(step: int, value: float = 1.0) -> StateCopy:
    made = Training.of(OPTIMIZERS["sgd momentum"])
    with torch.no_grad():
        made.model.head.weight.fill_(value)
    return copy_state(made.parts, step)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[CheckpointWriter]:
    made = CheckpointWriter(CheckpointStore(tmp_path / "c", "r"), is_finite)
    yield made
    assert made.close(30)


def steps_in(folder: Path) -> list[int]:
    return [point.step for point in listing(folder / "c")]


def test_a_checkpoint_is_written_in_the_background(writer: CheckpointWriter, tmp_path: Path) -> None:
    assert writer.submit(state(500), 2.0)
    assert writer.drain(30)
    assert steps_in(tmp_path) == [500]
    assert writer.events() == []


def test_a_state_that_is_being_written_is_known_so_that_it_is_not_changed_meanwhile(tmp_path: Path) -> None:
    may_go = threading.Event()
    made = CheckpointWriter(CheckpointStore(tmp_path / "c", "r"), lambda copy: may_go.wait(30))
    assert made.writing is None
    made.submit(state(500), 2.0)
    assert made.writing == 500
    may_go.set()
    assert made.close(30)
    assert made.writing is None


def test_the_training_does_not_wait_and_a_second_checkpoint_is_refused_meanwhile(tmp_path: Path) -> None:
    may_go = threading.Event()

    def slow(copy: StateCopy) -> bool:
        return may_go.wait(30)

    writer = CheckpointWriter(CheckpointStore(tmp_path / "c", "r"), slow)
    assert writer.submit(state(500), 2.0)
    assert writer.is_busy
    assert not writer.submit(state(501), 2.0)
    assert not writer.drain(0.01)
    may_go.set()
    assert writer.drain(30)
    assert not writer.is_busy
    assert writer.submit(state(502), 2.0)
    assert writer.close(30)
    assert steps_in(tmp_path) == [500, 502]


def values_in(folder: Path) -> list[tuple[int, float | None, bool]]:
    return [(point.step, point.meta.value, point.is_good) for point in listing(folder / "c") if point.meta is not None]


def test_a_metric_that_comes_while_its_state_is_being_written_is_kept(tmp_path: Path) -> None:
    may_go = threading.Event()
    writer = CheckpointWriter(CheckpointStore(tmp_path / "c", "r"), lambda copy: may_go.wait(30))
    cadence = CheckpointCadence(POLICY, writer)
    assert cadence.take(state(500), 2.0)
    assert cadence.has(500)
    writer.set_value(500, 0.25)
    may_go.set()
    cadence.healthy(550)
    assert not cadence.has(500)
    assert writer.close(30)
    assert values_in(tmp_path) == [(500, 0.25, True)]
    assert writer.events() == []


def test_the_best_state_is_written_behind_the_one_that_is_on_its_way_and_a_better_one_in_its_place(
    tmp_path: Path,
) -> None:
    may_go = threading.Event()
    writer = CheckpointWriter(CheckpointStore(tmp_path / "c", "r"), lambda copy: may_go.wait(30))
    cadence = CheckpointCadence(POLICY, writer)
    assert cadence.take(state(500), 2.0)
    assert not cadence.take(state(501), 2.0)
    assert cadence.take(state(502), 2.0, 0.5)
    assert cadence.take(state(503), 2.0, 0.4)
    assert [step for step in range(500, 505) if writer.holds(step)] == [500, 503]
    assert writer.is_busy
    may_go.set()
    cadence.healthy(560)
    assert writer.drain(30)
    assert values_in(tmp_path) == [(500, None, True), (503, 0.4, True)]
    assert not writer.is_busy
    assert not writer.holds(503)
    assert writer.close(30)


def test_a_state_that_is_there_already_gets_the_metric_it_is_written_again_with(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c", "r")
    copy = state(500)
    store.commit(copy, 2.0)
    store.promote(500)
    store.commit(copy, 2.0, 0.5)
    assert values_in(tmp_path) == [(500, 0.5, True)]
    store.close()


def test_a_non_finite_state_is_not_written_and_is_reported(writer: CheckpointWriter, tmp_path: Path) -> None:
    writer.submit(state(500), 2.0)
    writer.drain(30)
    writer.submit(state(1000, float("nan")), float("nan"))
    writer.drain(30)
    assert steps_in(tmp_path) == [500]
    (event,) = writer.events()
    assert (event.step, event.kind) == (1000, "checkpoint_not_finite")
    assert "head.weight" in event.message


def test_a_disk_that_refuses_is_an_event_and_the_next_checkpoint_is_tried(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    writer.submit(state(500), 2.0)
    writer.drain(30)
    (tmp_path / "c").rename(tmp_path / "away")
    assert writer.submit(state(1000), 2.0)
    writer.drain(30)
    (event,) = writer.events()
    assert (event.step, event.kind) == (1000, "checkpoint_failed")
    assert "newest checkpoint there: step 500" in event.message
    (tmp_path / "away").rename(tmp_path / "c")
    assert writer.submit(state(1500), 2.0)
    writer.drain(30)
    assert writer.events() == []
    assert steps_in(tmp_path) == [500, 1500]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    writer = CheckpointWriter(CheckpointStore(tmp_path / "c", "r"), is_finite)
    copy = state(500)
    child = os.fork()
    if child == 0:
        wrote = writer.submit(copy, 2.0) or not writer.drain(1) or writer.close(1)
        os._exit(1 if wrote else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert steps_in(tmp_path) == []
    assert writer.submit(copy, 2.0)
    assert writer.close(30)
    assert steps_in(tmp_path) == [500]


def cadence_over(writer: CheckpointWriter) -> Callable[[int, str], None]:
    cadence = CheckpointCadence(POLICY, writer)
    copy = state(0)

    def at(step: int, how: str) -> None:
        if cadence.is_due(step):
            assert cadence.take(dataclasses.replace(copy, step=step), 3.0)
            assert writer.drain(30)
        if how == "healthy":
            cadence.healthy(step)
        else:
            cadence.trouble()

    return at


def test_a_checkpoint_every_five_hundred_steps_is_good_after_fifty_healthy_ones(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    at = cadence_over(writer)
    for step in range(1, 1101):
        at(step, "healthy")
    writer.drain(30)
    assert [(point.step, point.is_good) for point in listing(tmp_path / "c")] == [(500, True), (1000, True)]
    assert [(event.kind) for event in writer.events()] == []


def test_a_checkpoint_shortly_before_a_problem_is_deleted_and_the_good_one_stays(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    at = cadence_over(writer)
    for step in range(1, 1041):
        at(step, "healthy" if step < 1030 else "trouble")
    writer.drain(30)
    assert [(point.step, point.is_good) for point in listing(tmp_path / "c")] == [(500, True)]


def test_the_thread_ends_and_the_directory_is_free_for_the_next(tmp_path: Path) -> None:
    writer = CheckpointWriter(CheckpointStore(tmp_path / "c", "one"), is_finite)
    writer.submit(state(1), 1.0)
    assert writer.close(30)
    wait_until(lambda: all(thread.name != "mlflow-stability-checkpoints" for thread in threading.enumerate()), 10)
    shutil.rmtree(next((tmp_path / "c").glob("rollback_ckpt-*")))
    CheckpointStore(tmp_path / "c", "two")
