"""A restore that breaks off, wherever it does, leaves everything as it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from recovery.breaking import BreaksAt, interrupted_at_line
from recovery.restorable import OPTIMIZERS, Training, Words, bits
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, SequentialLR, StepLR

from mlflow_stability.errors import StabilityError
from mlflow_stability.recovery.state.restore import EVERYTHING, RestorePlan, restore_state
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.recovery.state.value_tree import map_tensors

EACH = ("adamw foreach", "lbfgs")
"""Of these every operation is tried, of the others every eleventh."""


def everything(training: Training, parts: TrainingParts) -> dict[str, Any]:
    """All that a restore may change, gradients and generators too, and whether each is still the same object."""
    result = bits(training)
    for name, parameter in training.model.named_parameters():
        gradient = parameter.grad
        result[f"{name}.grad"] = None if gradient is None else plain(gradient)
    for number, optimizer in enumerate(training.optimizers):
        groups = [{key: item for key, item in group.items() if key != "params"} for group in optimizer.param_groups]
        result[f"groups.{number}"] = plain(groups)
        result[f"keys.{number}"] = [
            (id(key), id(entry), list(entry) if isinstance(entry, dict) else entry)
            for key, entry in optimizer.state.items()
        ]
    for number, scheduler in enumerate(parts.schedulers):
        result[f"scheduler.{number}"] = plain(scheduler.state_dict())
    if parts.scaler is not None:
        result["scaler"] = parts.scaler.state_dict()
    result["random"] = (random.getstate(), plain(np.random.get_state()), plain(torch.get_rng_state()))
    return result


def plain(value: Any) -> Any:
    """As text and bytes, so that it compares."""
    return repr(
        map_tensors(value, lambda tensor: tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    )


def content(copy: StateCopy) -> Any:
    return plain(
        [copy.tensors, [(optimizer.state, optimizer.shared) for optimizer in copy.optimizers], copy.later.averaged]
    )


def surrounded(training: Training) -> TrainingParts:
    """With a schedule in two parts, a loss scaler, and an averaged copy."""
    schedulers: list[LRScheduler] = []
    for optimizer in training.optimizers:
        halves = [StepLR(optimizer, 2, 0.5), StepLR(optimizer, 3, 0.9)]
        schedulers.append(SequentialLR(optimizer, halves, [3]))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    average = torch.optim.swa_utils.AveragedModel(training.model)
    return TrainingParts(tuple(training.optimizers), (training.model,), tuple(schedulers), scaler, (average,))


def went_on(training: Training, parts: TrainingParts, steps: int) -> None:
    training.run(steps)
    for scheduler in parts.schedulers:
        for _ in range(steps):
            scheduler.step()
    assert parts.scaler is not None
    parts.scaler.update(new_scale=float(steps))
    for item in parts.averaged:
        item.update_parameters(training.model)


@pytest.mark.filterwarnings("ignore")  # schedules are stepped without their optimizers here
@pytest.mark.parametrize(
    "name", [name if name == "sgd momentum" else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS]
)
def test_an_error_at_any_operation_changes_nothing_and_the_next_restore_succeeds(name: str) -> None:
    training = Training.of(OPTIMIZERS[name])
    parts = surrounded(training)
    went_on(training, parts, 2)
    copy = copy_state(parts, 2)
    then, saved = bits(training), content(copy)
    went_on(training, parts, 3)
    now = everything(training, parts)
    for number in range(0, 100_000, 1 if name in EACH else 11):
        breaks = BreaksAt(number)
        try:
            with breaks:
                restore_state(copy, parts, EVERYTHING)
        except MemoryError:
            assert everything(training, parts) == now, f"operation {number} of {name}"
            assert content(copy) == saved, f"operation {number} of {name}"
        if not breaks.has_broken:
            break
        if bits(training) == then:
            break  # the error came when all was done, and could be borne
    assert number > 20
    assert bits(training) == then


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["adamw tensor lr", "lbfgs", "sgd momentum"])
def test_an_error_at_any_line_of_ours_changes_nothing(name: str) -> None:
    training = Training.of(OPTIMIZERS[name])
    parts = surrounded(training)
    went_on(training, parts, 2)
    copy = copy_state(parts, 2)
    then, saved = bits(training), content(copy)
    went_on(training, parts, 3)
    now = everything(training, parts)
    ours = (
        "recovery/state/restore.py",
        "optimizer_restore.py",
        "state_copy.py",
    )
    tried = 0
    for number in range(0, 100_000, 11):
        plan = RestorePlan(copy, parts, EVERYTHING)
        try:
            with interrupted_at_line(number, ours):
                plan.apply()
        except MemoryError as error:
            where = str(error)
            assert everything(training, parts) == now, where
            assert content(copy) == saved, where
            tried += 1
            continue
        plan.finish()
        break
    assert tried > 40
    assert bits(training) == then
    assert content(copy) == saved


def test_an_error_with_sparse_tensors_and_shared_memory_changes_nothing() -> None:
    training = Training.of(lambda model: [torch.optim.SparseAdam(list(model.parameters()))], Words)
    model = training.model
    whole = torch.arange(12.0)
    model.register_buffer("front", whole[:8])
    model.register_buffer("back", whole[4:])
    model.register_buffer("again", whole[:8])
    model.register_buffer("coordinates", torch.eye(3).to_sparse())
    model.register_buffer("wide", torch.tensor([2.0]).expand(5))
    model.register_buffer("gaps", torch.arange(10.0)[::2])
    training.run(2)
    parts = training.parts
    copy = copy_state(parts, 2)
    then = bits_of(model)
    training.run(2)
    with torch.no_grad():
        whole.mul_(-3.0)
        model.gaps.fill_(9.0)
        model.wide[0] = 7.0
        model.coordinates.copy_(torch.ones(3, 3).to_sparse())
    now = bits_of(model)
    assert now != then
    for number in range(100_000):
        breaks = BreaksAt(number)
        try:
            with breaks:
                restore_state(copy, parts)
        except MemoryError:
            assert bits_of(model) == now, f"operation {number}"
        if not breaks.has_broken or bits_of(model) == then:
            break
    assert bits_of(model) == then


def bits_of(model: nn.Module) -> list[Any]:
    return [parameter.detach().to_dense().tolist() for parameter in (*model.parameters(), *model.buffers())]


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_of_the_script_that_refuses_half_way_changes_nothing() -> None:
    class Stubborn(StepLR):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            if state["last_epoch"] < 5:
                self.half_done = True
                raise ValueError("this schedule goes forward only")

    training = Training.of(OPTIMIZERS["adamw foreach"])
    scheduler = Stubborn(training.optimizers[0], 2)
    parts = TrainingParts(tuple(training.optimizers), (training.model,), (scheduler,))
    training.run(2)
    copy = copy_state(parts, 2)
    training.run(3)
    for _ in range(5):
        scheduler.step()
    now = everything(training, parts)
    with pytest.raises(ValueError, match="goes forward only"):
        restore_state(copy, parts, EVERYTHING)
    assert everything(training, parts) == now
    assert not hasattr(scheduler, "half_done")


def test_parts_that_cannot_be_restored_after_an_error_are_named() -> None:
    training = Training.of(OPTIMIZERS["adamw foreach"])
    training.run(2)
    copy = copy_state(training.parts, 2)
    then = bits(training)
    training.run(3)
    now = bits(training)
    plan = RestorePlan(copy, training.parts, EVERYTHING)
    with BreaksAt(40, times=1_000_000), pytest.raises(MemoryError):
        plan.apply()
    torn = bits(training)
    assert torn not in (then, now)
    assert "weights, buffers and optimizer state" in str(plan.torn)
    named = int(str(plan.torn).split("RuntimeError: ")[1].split(" of ")[0])
    wrong = sum(torn[value] != now[value] for value in now if value != "down.weight")  # it is `up.weight`
    assert 0 < wrong <= named < len(now)
    assert plan.undo() == (), "once there is room again it can be put back"
    assert bits(training) == now


def test_a_restore_that_leaves_something_torn_says_so_to_the_script() -> None:
    training = Training.of(OPTIMIZERS["sgd momentum"])
    training.run(2)
    copy = copy_state(training.parts, 2)
    training.run(3)
    with BreaksAt(1_000_000) as counting:
        RestorePlan(copy, training.parts, EVERYTHING)
    half = counting.count + 20
    with BreaksAt(half, times=1_000_000), pytest.raises(StabilityError, match="Incomplete: these may now be"):
        restore_state(copy, training.parts, EVERYTHING)


def test_a_training_that_was_copied_aside_is_not_copied_again() -> None:
    training = Training.of(OPTIMIZERS["adamw foreach"])
    training.run(2)
    copy = copy_state(training.parts, 2)
    training.run(3)
    now = bits(training)
    aside = copy_state(training.parts, 5)
    with BreaksAt(1_000_000) as alone:
        RestorePlan(copy, training.parts)
    with BreaksAt(1_000_000) as beside:
        plan = RestorePlan(copy, training.parts, aside=lambda: aside)
    assert beside.count < alone.count
    plan.apply()
    assert bits(training) != now
    plan.undo()
    assert bits(training) == now
