from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn

from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.recovery.checkpoints.stored_checkpoints import listing
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.session.autopilot import states
from mlflow_stability.session.autopilot.states import States
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

NO_RATES = MappingProxyType[int, tuple[float, ...]]({})


def training() -> TrainingParts:
    model = nn.Linear(4, 1)
    return TrainingParts((torch.optim.SGD(model.parameters(), lr=0.1),), (model,))


def states_in(folder: Path) -> States:
    policy = RollbackPolicy(best_by="val_loss")
    return States(policy, PartGuard(True, lambda *_: None), lambda: (folder, "run"), 1)


def values_in(folder: Path) -> list[tuple[int, float | None]]:
    return [(point.step, point.meta.value) for point in listing(folder) if point.meta is not None]


def test_a_metric_logged_before_the_next_backward_pass_goes_into_the_checkpoint_of_its_step(
    tmp_path: Path,
) -> None:
    kept, parts = states_in(tmp_path), training()
    kept.take(parts, 100, 2.0, NO_RATES, ring=False, disk=True)
    assert kept.write_now(parts, 100, 2.0, NO_RATES, 0.5)
    assert kept.incomplete is None
    kept.close(30)
    assert values_in(tmp_path) == [(100, 0.5)]


def test_the_best_state_is_not_kept_waiting_for_the_disk_where_there_is_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, parts = states_in(tmp_path), training()
    monkeypatch.setattr(states, "free_memory", lambda: 0)
    assert kept.write_now(parts, 100, 2.0, NO_RATES, 0.5)
    kept.writer._idle.clear()  # as while a state is being written
    assert not kept.write_now(parts, 101, 2.0, NO_RATES, 0.4)
    kept.close(30)
    assert values_in(tmp_path) == [(100, 0.5)]
