"""Gradients that are not cleared, and real trainings of every shape that clears them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from session.watched_facts import Watched
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, SGD, Adam, Optimizer

from mlflow_stability.vocabulary.result import Action, Remedy, Severity


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    training = Watched(tmp_path)
    yield training
    training.remove()


def reported_steps(watched: Watched) -> list[int]:
    """The steps since which gradients are not cleared, as the recording has them."""
    return [event.step for event in watched.events() if event.kind == "missing_zero_grad"]


def loss_of(model: nn.Module) -> Tensor:
    loss: Tensor = model(torch.randn(8, 4)).square().mean()
    return loss


def test_missing_zero_grad_is_reported_once_with_its_first_step(watched: Watched) -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    (event,) = [finding for finding in watched.events() if finding.kind == "missing_zero_grad"]
    assert event.severity is Severity.WARNING
    assert event.step == 2
    assert "not cleared since step 2" in event.message
    assert event.remedies == (Remedy(Action.CALL_ZERO_GRAD),)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("made", [SGD, Adam])
def test_the_start_and_the_end_of_missing_zero_grad_are_reported_with_their_steps(
    watched: Watched, made: Callable[..., Optimizer], clips: bool
) -> None:
    model = nn.Linear(4, 2)
    optimizer = made(model.parameters(), lr=0.001)
    for step in range(1, 101):
        if step < 41 or 60 < step < 71:
            optimizer.zero_grad()
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        if clips:
            clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    assert reported_steps(watched) == [41, 71]
    cleared = [event for event in watched.events() if "not_cleared_since" in event.metrics]
    assert [(finding.kind, finding.metrics["not_cleared_since"]) for finding in cleared] == [
        ("configuration_changed", 41)
    ]
    assert 61 <= cleared[0].step <= 70
    assert cleared[0].message == f"Gradients are cleared again at step {cleared[0].step}; since step 41 they were not."


def to_none(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def in_place(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


def without_a_trace(model: nn.Module) -> None:
    """A tensor's `data` counts no change."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


def by_others(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize("clear", [to_none, in_place, without_a_trace, by_others])
@pytest.mark.parametrize("before_the_step", [False, True])
def test_nothing_is_reported_if_a_script_clears_gradients_in_its_own_way(
    watched: Watched, clear: Callable[[nn.Module], None], before_the_step: bool
) -> None:
    model = nn.Linear(4, 2)
    optimizer = Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        if before_the_step:
            clear(model)
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if not before_the_step:
            clear(model)
    assert reported_steps(watched) == []


def test_gradients_that_a_script_sets_before_steps_of_other_optimizers_are_of_the_step_to_come(
    watched: Watched,
) -> None:
    model = nn.Linear(4, 2)
    optimizer = Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        for _ in range(3):  # tasks of meta-learning
            learner = nn.Linear(4, 2)
            learner.load_state_dict(model.state_dict())
            inner = SGD(learner.parameters(), lr=0.01)
            for _ in range(3):
                inner.zero_grad()
                loss_of(learner).backward()  # type: ignore[no-untyped-call]
                inner.step()
            for own, result in zip(model.parameters(), learner.parameters(), strict=True):
                assert result.grad is not None
                own.grad = result.grad.clone() if own.grad is None else own.grad + result.grad
        optimizer.step()
    assert reported_steps(watched) == []


def test_accumulation_over_micro_batches_is_no_missing_call(watched: Watched) -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(3):
            loss_of(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert reported_steps(watched) == []


@pytest.mark.parametrize("together", [False, True])
def test_two_optimizers_that_clear_their_own_gradients_when_it_is_their_turn_are_fine(
    watched: Watched, together: bool
) -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 2)
    ours, theirs = SGD(generator.parameters(), lr=0.01), SGD(critic.parameters(), lr=0.01)
    for _ in range(40):
        theirs.zero_grad()
        loss_of(critic).backward()  # type: ignore[no-untyped-call]
        if not together:
            theirs.step()
        if together:
            ours.zero_grad()
            loss_of(nn.Sequential(generator, critic)).backward()  # type: ignore[no-untyped-call]
            theirs.step()
        else:
            ours.zero_grad()
            loss_of(nn.Sequential(generator, critic)).backward()  # type: ignore[no-untyped-call]
        ours.step()
    assert reported_steps(watched) == []


def test_a_closure_that_clears_before_each_evaluation_is_fine(watched: Watched) -> None:
    model = nn.Linear(4, 2)
    optimizer = LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(20):
        optimizer.step(closure)  # type: ignore[arg-type]
    assert reported_steps(watched) == []


def test_one_forgotten_call_is_no_habit(watched: Watched) -> None:
    model = nn.Linear(4, 2)
    optimizer = SGD(model.parameters(), lr=0.01)
    for step in range(40):
        if step % 4:
            optimizer.zero_grad()
        loss_of(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert reported_steps(watched) == []
