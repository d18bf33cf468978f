"""The journal of a training has the origin of a NaN, with the guard and without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recovery.guarded_training import differences, picture
from recovery.planted import (
    LAST,
    Net,
    Plant,
    a_logarithm,
    a_loss,
    a_root,
    a_weight,
    an_input,
    an_optimizer,
)
from scenarios.flying import flying
from torch import nn

import mlflow_stability
from mlflow_stability import Options
from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts

pytestmark = pytest.mark.scenario
AFTER = 3


def train(plant: Plant) -> tuple[nn.Module, Any]:
    """As users train; goes on after the step that breaks."""
    torch.manual_seed(0)
    model = plant.model
    optimizer = plant.make(model.parameters())
    for step in range(1, LAST + AFTER + 1):
        batch = plant.batch(min(step, LAST) if step <= LAST else 1)
        if step == LAST:
            plant.before_step(step, model, optimizer)
        optimizer.zero_grad()
        plant.loss(model(batch)).backward()
        if step == LAST - 1:
            plant.before_step(step, model, optimizer)
        optimizer.step()
    return model, optimizer


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [an_input, a_logarithm, a_root, a_loss, an_optimizer, a_weight], ids=lambda letter: letter.__name__
)
def test_under_the_guard_the_origin_is_in_the_journal(tmp_path: Path, make: Callable[[], Plant]) -> None:
    plant = make()
    with flying(tmp_path, guard=True) as flown:
        train(plant)
        assert flown.session.parts_off == {}
    (event,) = flown.events("nan_origin")
    assert (event.step, event.place) == (LAST, plant.module)
    assert isinstance(event.facts, NanOriginFacts)
    assert event.facts.source.value == plant.source
    assert plant.operation in event.message


@pytest.mark.slow
@pytest.mark.parametrize("make", [a_logarithm, a_root, an_optimizer], ids=lambda letter: letter.__name__)
def test_without_the_guard_the_first_broken_step_is_looked_at(tmp_path: Path, make: Callable[[], Plant]) -> None:
    plant = make()
    with flying(tmp_path) as flown:
        train(plant)
        assert flown.session.parts_off == {}
    (event,) = flown.events("nan_origin")
    assert (event.step, event.place) == (LAST, plant.module)
    (batch,) = flown.events("broken_batch")
    assert batch.step == LAST


def test_who_does_not_want_it_does_without(tmp_path: Path) -> None:
    with flying(tmp_path, options=Options(capture_batch=False)) as flown:
        train(a_logarithm())
    assert flown.events("nan_origin") == flown.events("broken_batch") == []


@pytest.mark.slow
@pytest.mark.parametrize("make", [a_logarithm, a_root], ids=lambda letter: letter.__name__)
def test_a_training_is_the_same_with_it_and_without_it(tmp_path: Path, make: Callable[[], Plant]) -> None:
    result = []
    for capture in (False, True):
        torch.manual_seed(0)  # the weights, too, are to be the same
        with flying(tmp_path / str(capture), guard=True, options=Options(capture_batch=capture)):
            result.append([*picture(*train(make())), torch.get_rng_state()])
    assert differences(*result) == []


@pytest.mark.slow
def test_a_compiled_model_is_run_again_without_the_compiler(tmp_path: Path) -> None:
    """`eager` as the backend: what matters is who is called."""
    plant = a_logarithm()
    plant.model = Net(plant.model.get_submodule("between"), nn.Identity())
    plant.model.compile(backend="eager")
    with flying(tmp_path, guard=True) as flown:
        train(plant)
        frames = torch._dynamo.utils.counters["frames"]["total"]
        assert flown.session.parts_off == {}
    torch._dynamo.reset()
    (event,) = flown.events("nan_origin")
    assert (event.place, frames) == ("between", torch._dynamo.utils.counters["frames"]["total"] or frames)
    assert mlflow_stability.current_session() is None
