from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recovery.restorable import OPTIMIZERS, Training

from mlflow_stability.recovery.state import host_copy, snapshot_ring
from mlflow_stability.recovery.state.host_copy import free_memory
from mlflow_stability.recovery.state.snapshot_ring import SnapshotRing
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

POLICY = RollbackPolicy(snapshot_every=100, snapshots=3, snapshot_budget=1 << 30, healthy_after=50)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def training() -> Training:
    made = Training.of(OPTIMIZERS["sgd momentum"])
    made.run(1)
    return made


FINE = copy_state(training().parts, 0)


def fine(step: int) -> StateCopy:
    return dataclasses.replace(FINE, step=step)


def poisoned(step: int) -> StateCopy:
    made = training()
    with torch.no_grad():
        made.model.head.weight.fill_(torch.nan)
    return copy_state(made.parts, step)


def ring_of(clock: Clock | None = None, **changed: object) -> SnapshotRing:
    return SnapshotRing(dataclasses.replace(POLICY, **changed), clock or Clock())


def filled(*steps: int, **changed: object) -> SnapshotRing:
    ring = ring_of(**changed)
    for step in steps:
        ring.add(fine(step), float(step))
        ring.healthy(step + 50)
        assert ring.good[-1].step == step
    return ring


def steps_of(ring: SnapshotRing) -> list[int]:
    return [point.step for point in ring.good]


def test_the_first_state_is_due_at_once_and_then_every_hundred_steps() -> None:
    clock = Clock()
    ring = ring_of(clock)
    assert ring.is_due(1, FINE.nbytes)
    ring.add(fine(1), 2.0)
    ring.healthy(51)
    clock.now = 1e6
    assert not ring.is_due(100, FINE.nbytes)
    assert ring.is_due(101, FINE.nbytes)


def test_a_state_is_good_only_after_fifty_healthy_steps() -> None:
    ring = ring_of()
    ring.add(fine(100), 2.0)
    assert not ring.is_due(200, FINE.nbytes)  # one at a time proves itself
    for step in (101, 149):
        ring.healthy(step)
        assert ring.good == ()
    ring.healthy(150)
    assert steps_of(ring) == [100]


def test_trouble_drops_what_has_not_proved_itself_and_nothing_else() -> None:
    ring = filled(0, 100)
    ring.add(fine(200), 2.0)
    ring.trouble()
    ring.healthy(300)
    assert steps_of(ring) == [0, 100]


def test_a_state_that_is_not_finite_is_never_good() -> None:
    ring = filled(0, 100)
    ring.add(poisoned(200), 2.0)
    ring.healthy(250)
    assert steps_of(ring) == [0, 100]


def test_three_states_are_kept_in_all() -> None:
    ring = filled(0, 100, 200, 300)
    assert steps_of(ring) == [200, 300]


def test_after_going_back_newer_states_are_forgotten() -> None:
    ring = filled(0, 100, 200, snapshots=5)
    ring.add(fine(300), 1.0)
    ring.rolled_back(100)
    assert steps_of(ring) == [0, 100]


def test_states_take_no_more_than_the_budget() -> None:
    assert not ring_of(snapshot_budget=FINE.nbytes).is_due(1, FINE.nbytes)
    two = ring_of(snapshot_budget=2 * FINE.nbytes + 1)
    assert two.is_due(1, FINE.nbytes)
    for step in (1, 101, 201):
        two.add(fine(step), 1.0)
        two.healthy(step + 50)
    assert steps_of(two) == [201]
    assert ring_of(snapshot_budget=None).is_due(1, FINE.nbytes)
    assert free_memory() > 1 << 20


def test_the_processes_of_one_machine_share_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_ring, "free_memory", lambda: 64 * FINE.nbytes)
    alone, of_eight = ring_of(snapshot_budget=None), SnapshotRing(RollbackPolicy(), ranks_here=8)
    alone.is_due(1, FINE.nbytes)
    of_eight.is_due(1, FINE.nbytes)
    assert (alone.places, of_eight.places) == (3, 2)


@pytest.mark.parametrize(
    ("own", "limits", "free"),
    [
        ("0::/", {"memory.max": "1000", "memory.current": "700"}, 310),
        ("0::/", {"memory.max": "max", "memory.current": "700"}, 5000),
        (
            "0::/slurm/job_7/step_0",
            {"slurm/job_7/memory.max": "900", "slurm/job_7/memory.current": "800"}
            | {"slurm/job_7/step_0/memory.max": "max", "slurm/job_7/step_0/memory.current": "10"},
            110,
        ),
        ("0::/not/seen/from/here", {"memory.max": "1000", "memory.current": "700"}, 310),
        (
            "4:cpu,memory:/job\n0::/",
            {"memory/job/memory.limit_in_bytes": "600", "memory/job/memory.usage_in_bytes": "100"}
            | {"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "4000"},
            520,
        ),
        ("3:cpu:/job", {"memory/job/memory.limit_in_bytes": "600", "memory/job/memory.usage_in_bytes": "1"}, 5000),
        ("0::/", {"memory.max": "1000", "memory.current": "2000"}, 0),
    ],
)
def test_the_free_memory_is_that_of_the_tightest_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, limits: dict[str, str], free: int
) -> None:
    for name, content in limits.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
        (file.parent / "memory.stat").write_text("anon 5\ninactive_file 10\ntotal_inactive_file 20\n")
    (tmp_path / "own").write_text(own + "\n")
    monkeypatch.setattr(host_copy, "_CONTAINER", tmp_path)
    monkeypatch.setattr(host_copy, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(host_copy, "_available", lambda: 5000)
    assert free_memory() == free


def test_states_take_no_more_than_their_share_of_the_time() -> None:
    clock = Clock()
    ring = ring_of(clock, snapshot_share=0.01)
    ring.add(dataclasses.replace(fine(1), blocked=2.0), 1.0)
    ring.healthy(51)
    clock.now = 199.0
    assert not ring.is_due(500, FINE.nbytes)
    clock.now = 201.0
    assert ring.is_due(501, FINE.nbytes)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from(["fine", "poisoned"]), st.booleans()), max_size=12))
def test_what_is_not_good_never_pushes_a_good_one_out(history: list[tuple[str, bool]]) -> None:
    ring, sick = ring_of(), POISONED
    for number, (kind, trouble) in enumerate(history):
        step, before = 100 * (number + 1), steps_of(ring)
        copy = fine(step) if kind == "fine" else dataclasses.replace(sick, step=step)
        ring.add(copy, 1.0)
        assert steps_of(ring) == before
        if trouble:
            ring.trouble()
        ring.healthy(step + 50)
        if kind == "fine" and not trouble:
            assert steps_of(ring) == [*before, step][-2:]
        else:
            assert steps_of(ring) == before


POISONED = poisoned(0)
