"""A training whose data or loss function changes is not rolled back again and again, and never ended for it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from scenarios.flying import QUICK, Flown, flying
from torch import Tensor, nn
from torch.optim import SGD, Adam

import mlflow_stability
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

pytestmark = pytest.mark.scenario
CHANGES = 200
POLICY = dataclasses.replace(QUICK, on_give_up="raise")
"""What would end the training ends the test."""
Loss = Callable[[nn.Module, Tensor, int], Tensor]


def trained(
    folder: Path,
    loss_of: Loss,
    steps: int = 420,
    rate: Callable[[int], float] = lambda _: 0.01,
    policy: RollbackPolicy = POLICY,
) -> tuple[Flown, float]:
    """A small regression under the autopilot, and its last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = Adam(model.parameters(), lr=0.01)
    dice = torch.Generator().manual_seed(1)
    with flying(folder, rollback=policy) as flown:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate(step)
            loss = loss_of(model, torch.randn(32, 8, generator=dice), step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return flown, loss.item()


def targets(inputs: Tensor) -> Tensor:
    return inputs[:, :1].sin() + inputs[:, 1:2] + 0.2 * torch.randn(len(inputs), 1)


def other_targets(model: nn.Module, inputs: Tensor, step: int) -> Tensor:
    """From some step on, all targets are other ones."""
    wanted = targets(inputs)
    return nn.functional.mse_loss(model(inputs), wanted if step < CHANGES else 3.0 - 2.0 * wanted)


def weight_at(step: int) -> float:
    """It grows over 100 steps, as the weight of the KL divergence of a VAE does."""
    return min(1.0, max(0.0, (step - CHANGES) / 100))


def growing_term(model: nn.Module, inputs: Tensor, step: int) -> Tensor:
    """The graph of this loss does not show the weight."""
    outputs, weight = model(inputs), weight_at(step)
    penalty = (weight**0.5 * outputs).square().mean()
    return nn.functional.mse_loss(outputs, targets(inputs)) + 1.0 + 3.0 * weight + penalty


def weighted_term(model: nn.Module, inputs: Tensor, step: int) -> Tensor:
    outputs = model(inputs)
    term = 3.0 + outputs.square().mean()
    return nn.functional.mse_loss(outputs, targets(inputs)) + 1.0 + weight_at(step) * term


def added_term(model: nn.Module, inputs: Tensor, step: int) -> Tensor:
    outputs = model(inputs)
    loss = nn.functional.mse_loss(outputs, targets(inputs)) + 1.0
    return loss + (3.0 + outputs.square().mean()) if step >= CHANGES else loss


def plain(model: nn.Module, inputs: Tensor, step: int) -> Tensor:
    return nn.functional.mse_loss(model(inputs), targets(inputs))


def test_after_data_that_changed_for_good_the_training_goes_on_from_where_it_was(tmp_path: Path) -> None:
    flown, last = trained(tmp_path, other_targets)
    (event,) = flown.events("data_changed")
    back, undone = flown.events("rollback")
    assert "give a loss of" in event.message
    assert abs(event.metrics["onset"] - CHANGES) < 20
    assert undone.metrics["target"] == back.step, "what was learnt before the rollback is not lost"
    assert undone.metrics["steps_regained"] == back.metrics["steps_lost"]
    assert undone.step - back.step <= POLICY.recovery_patience + 1
    assert flown.events("give_up") == []
    assert last < 0.2


TASK_STEPS = 120


def three_tasks(seed: int, *, adds: bool = False) -> Iterator[nn.Module]:
    """Train a classifier on one pair of classes after another, or added to the others; yield it after each step."""
    torch.manual_seed(seed)
    inputs, centers = torch.randn(2000, 12), 1.5 * torch.randn(6, 12)
    classes = torch.randint(6, (2000,))
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 6))
    optimizer = Adam(model.parameters(), lr=2e-3)
    for task in range(3):
        pairs = classes // 2
        of_task = torch.nonzero(pairs <= task if adds else pairs == task)[:, 0]
        for _ in range(TASK_STEPS):
            batch = of_task[torch.randint(len(of_task), (32,))]
            loss = nn.functional.cross_entropy(model(inputs[batch] + centers[classes[batch]]), classes[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield model


def noisier_labels(seed: int) -> Iterator[nn.Module]:
    """Train a classifier; a third of the labels are drawn from some step on."""
    torch.manual_seed(seed)
    inputs, centers = torch.randn(3000, 12), 1.5 * torch.randn(6, 12)
    classes = torch.randint(6, (3000,))
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(420):
        batch = torch.randint(3000, (32,))
        drawn = torch.rand(32) < (0.3 if step >= CHANGES else 0.0)
        labels = torch.where(drawn, torch.randint(6, (32,)), classes[batch])
        loss = nn.functional.cross_entropy(model(inputs[batch] + centers[classes[batch]]), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield model


CHANGED = {
    "other classes, 61": lambda: three_tasks(61),
    "other classes, 63": lambda: three_tasks(63),
    "more classes, 11": lambda: three_tasks(11, adds=True),
    "more classes, 10": lambda: three_tasks(10, adds=True),
    "noisier labels": lambda: noisier_labels(4),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_learnt_after_a_change_is_what_is_learnt_without_rollbacks(tmp_path: Path, name: str) -> None:
    def weights() -> Tensor:
        *_, model = CHANGED[name]()
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    bare = weights()
    with flying(tmp_path, rollback=True) as flown:
        watched = weights()
    assert flown.events("divergence"), "the change looks like one"
    assert torch.equal(watched, bare)


def test_a_state_is_not_good_before_the_loss_is_back_from_its_rise(tmp_path: Path) -> None:
    with flying(tmp_path, rollback=QUICK) as flown:
        good = [flown.session.good_steps for _ in three_tasks(61)]
    step = flown.events("divergence")[0].step
    assert TASK_STEPS < step < 150
    assert max(good[step + 2 * QUICK.snapshot_every]) <= TASK_STEPS, "twice as long as healthy steps would take"
    assert max(good[2 * TASK_STEPS - 1]) > TASK_STEPS, "a state of the second task is good once its loss has fallen"


def test_a_loss_function_that_changes_gradually_ends_no_training(tmp_path: Path) -> None:
    usual = RollbackPolicy(snapshot_share=1.0, on_give_up="raise")
    flown, last = trained(tmp_path, growing_term, steps=600, policy=usual)
    events = flown.events("data_changed")
    assert events
    undone = [event for event in flown.events("rollback") if "steps_regained" in event.metrics]
    assert len(undone) == len(events) == len(flown.events("rollback")) / 2
    assert flown.events("give_up") == []
    assert last < 5.0


@pytest.mark.parametrize("loss_of", [weighted_term, added_term])
def test_a_term_whose_growth_the_graph_shows_is_not_answered(tmp_path: Path, loss_of: Loss) -> None:
    flown, _ = trained(tmp_path, loss_of, steps=500)
    assert [event.message for event in flown.events() if event.kind in ("rollback", "divergence", "data_changed")] == []


def test_the_learning_rate_is_not_reduced_any_more_then(tmp_path: Path) -> None:
    flown, _ = trained(tmp_path, other_targets)
    undone = flown.events("rollback")[-1]
    later = [
        record for record in flown.records if getattr(record, "step", 0) > undone.step and hasattr(record, "signals")
    ]
    assert later
    assert all(signal.quantity != "learning_rate_used" for item in later for signal in item.signals)


@pytest.mark.parametrize("factor", [300.0, 100.0])
def test_a_learning_rate_that_jumps_is_answered_by_a_rollback_as_ever(tmp_path: Path, factor: float) -> None:
    flown, last = trained(tmp_path, plain, rate=lambda step: 0.01 * (factor if 200 <= step < 300 else 1.0))
    assert flown.events("rollback")
    assert flown.events("data_changed") == []
    assert last < 0.1


def test_weights_that_break_are_replaced_and_the_data_is_not_blamed(tmp_path: Path) -> None:
    def broken(model: nn.Module, inputs: Tensor, step: int) -> Tensor:
        if step == CHANGES:
            with torch.no_grad():
                model[0].weight.mul_(100.0)  # type: ignore[index, union-attr]
                model[2].weight.mul_(30.0)  # type: ignore[index, union-attr]
        return plain(model, inputs, step)

    flown, last = trained(tmp_path, broken)
    assert len(flown.events("rollback")) == 1
    assert flown.events("data_changed") == []
    assert last < 0.1


def test_a_change_of_the_data_is_reported_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    policy = RollbackPolicy(snapshot_every=50, snapshot_share=1.0)
    options = mlflow_stability.Options(journal_dir=tmp_path)
    mlflow_stability.autolog(rollback=policy, offline=True, strict=True, options=options)
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = Adam(model.parameters(), lr=0.01)
        for step in range(300):
            loss = other_targets(model, torch.randn(32, 8), step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        mlflow_stability.autolog(disable=True)
    messages = [message for message in caplog.messages if "Rolled back" in message or "data_changed" in message]
    assert len(messages) == 2, messages
    assert messages[1].startswith("data_changed: The weights of step 101 give a loss of ")
    assert "Going back to the weights of step" in messages[1]
