"""A learning rate that is too high from the first step on: back to the initial weights, with smaller steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scenarios.flying import Flown, flying
from scenarios.test_rescue import end_of, task
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from mlflow_stability import Options, RollbackPolicy, TrainingDiverged
from mlflow_stability.vocabulary.result import Severity

pytestmark = pytest.mark.scenario
Make = Callable[[list[torch.nn.Parameter]], Optimizer]
TOO_HIGH: dict[str, Make] = {
    "Adam x100": lambda parameters: Adam(parameters, lr=1.0),
    "Adam x1000": lambda parameters: Adam(parameters, lr=10.0),
    "SGD x100": lambda parameters: SGD(parameters, lr=5.0, momentum=0.9),
    "SGD x1000": lambda parameters: SGD(parameters, lr=50.0, momentum=0.9),
}
"""Losses that grow without bound, and ones that lead to weights of no use."""


def train(make: Make, steps: int = 500) -> tuple[list[float], set[float]]:
    """Losses, and the learning rates that the script saw."""
    model, next_loss = task()
    optimizer = make(list(model.parameters()))
    losses, rates = [], set()
    for _ in range(steps):
        rates.add(optimizer.param_groups[0]["lr"])
        loss = next_loss()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, rates


@pytest.mark.slow
@pytest.mark.parametrize("name", TOO_HIGH)
def test_a_learning_rate_too_high_from_the_first_step_on_ends_in_a_training_that_learns(
    name: str, tmp_path: Path
) -> None:
    with flying(tmp_path, rollback=True) as flown:
        losses, rates = train(TOO_HIGH[name])
    events = flown.events("rollback")
    assert events[0].metrics["target"] == 0
    assert "times its scheduled value from now on" in events[0].message
    assert len(events) <= 3
    assert flown.events("give_up") == []
    assert end_of(losses) < 0.25 * losses[0]
    assert len(rates) == 1, "the script sees its own learning rate"
    skipped = [event for event in flown.events("step_skipped") if "stands still" in event.message]
    assert skipped == []


def stopped(folder: Path, policy: RollbackPolicy, why: str) -> Flown:
    with flying(folder, rollback=policy) as flown, pytest.raises(TrainingDiverged, match=rf"{why}.*by a factor of 3"):
        train(TOO_HIGH["SGD x1000"])
    return flown


def test_where_even_that_does_not_help_a_training_can_be_stopped_and_says_so(tmp_path: Path) -> None:
    policy = RollbackPolicy(initial_factor=0.99, max_rollbacks=2, on_give_up="raise")
    flown = stopped(tmp_path, policy, "initial weights did not help")
    assert [event.metrics["target"] for event in flown.events("rollback")] == [0, 0]
    (final,) = flown.events("give_up")
    assert final.severity is Severity.CRITICAL
    assert "Training stopped with TrainingDiverged." in final.message
    assert final.step < 120


def test_by_default_it_is_stopped_only_when_no_step_is_taken_any_more(tmp_path: Path) -> None:
    flown = stopped(tmp_path, RollbackPolicy(initial_factor=0.99, max_rollbacks=2), "100 consecutive steps skipped")
    first, last = [event for event in flown.events("give_up") if event.severity is Severity.CRITICAL]
    assert "initial weights did not help" in first.message
    assert "No further rollbacks; broken steps are still skipped." in first.message
    assert "Training stopped with TrainingDiverged." in last.message


@pytest.mark.slow
def test_a_script_may_ask_to_go_on_all_the_same(tmp_path: Path) -> None:
    policy = RollbackPolicy(initial_factor=0.99, max_rollbacks=1, on_give_up="continue")
    with flying(tmp_path, rollback=policy) as flown:
        losses, _ = train(TOO_HIGH["SGD x1000"], steps=200)
    assert len(losses) == 200
    assert "broken steps are still skipped" in flown.events("give_up")[-1].message


@pytest.mark.slow
def test_a_training_none_of_whose_steps_can_be_taken_is_not_rolled_back_to_where_it_is(tmp_path: Path) -> None:
    def never() -> None:
        model, next_loss = task()
        optimizer = Adam(model.parameters())
        for _ in range(150):
            (next_loss() * float("nan")).backward()
            optimizer.step()
            optimizer.zero_grad()

    with (
        flying(tmp_path, rollback=True) as flown,
        pytest.raises(
            TrainingDiverged, match=r"100 consecutive steps.*Check that the first batch has targets"
        ) as stopped,
    ):
        never()
    assert flown.events("rollback") == []
    assert "learning rate" not in str(stopped.value), "it has changed nothing yet"


@pytest.mark.slow
@pytest.mark.parametrize("capture_batch", [True, False])
def test_what_overflows_in_half_precision_is_not_blamed_on_the_learning_rate(
    capture_batch: bool, tmp_path: Path
) -> None:
    def overflowing() -> None:
        torch.manual_seed(0)
        model = nn.Linear(4, 4).half()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(150):
            (model(torch.randn(8, 4).half()) * 6e4).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with (
        flying(tmp_path, rollback=True, options=Options(capture_batch=capture_batch)) as flown,
        pytest.raises(
            TrainingDiverged,
            match=r"consecutive steps.*Train in bf16 instead.*Check that the first batch",
        ),
    ):
        overflowing()
    assert str(flown.events("give_up")[-1].remedies[0]).startswith("Train in bf16 instead of fp16")


@pytest.mark.slow
def test_the_initial_weights_are_the_first_to_leave(tmp_path: Path) -> None:
    policy = RollbackPolicy(snapshot_every=20, snapshot_share=1.0, healthy_after=10)
    seen = []
    with flying(tmp_path, rollback=policy) as flown:
        model, next_loss = task()
        optimizer = Adam(model.parameters())
        for _ in range(80):
            next_loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(flown.session.good_steps)
    assert seen[1] == (0,)
    assert 0 in seen[20]
    assert 0 not in seen[-1]
    assert len(seen[-1]) == dataclasses.replace(policy).snapshots - 1
