"""Trainings one after another and side by side in one process: no step of either is lost or mixed with the other's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
import torch
from scenarios.flying import flying
from scenarios.watching import Watched, batches, mse, tiny_model
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

import mlflow_stability
from mlflow_stability.journal.layout import recording_folders, session_folders


def with_backward(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for batch in batches(steps):
        mse(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def by_autograd_grad(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for batch in batches(steps):
        gradients = torch.autograd.grad(mse(model, batch), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


def by_hand(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    """As evolution strategies do."""
    with torch.no_grad():
        for _ in range(steps):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.1)
            optimizer.step()


WITHOUT_BACKWARD: dict[str, Callable[[nn.Module, Optimizer, int], None]] = {
    "autograd.grad": by_autograd_grad,
    "by hand": by_hand,
}


@pytest.mark.parametrize("before", [1, 5])
@pytest.mark.parametrize("kind", WITHOUT_BACKWARD)
def test_no_step_is_lost_of_a_training_without_backward_that_follows_another(
    watched: Watched, kind: str, before: int
) -> None:
    first = tiny_model(1)
    optimizer = SGD(first.parameters(), lr=0.1)  # lives on: the next one has not its identity
    with_backward(first, optimizer, before)
    second = tiny_model(2)
    WITHOUT_BACKWARD[kind](second, SGD(second.parameters(), lr=0.05), 4)
    rows = watched.rows()
    assert len(rows) == before + 4
    assert ["grad_norm@track_1" in row for row in rows] == [False] * before + [True] * 4


def test_no_step_is_lost_where_both_optimizers_were_made_beforehand(watched: Watched) -> None:
    models = [tiny_model(1), tiny_model(2)]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    with_backward(models[0], optimizers[0], 3)
    by_autograd_grad(models[1], optimizers[1], 3)
    assert len(watched.rows()) == 6


@pytest.mark.slow
def test_no_step_is_lost_from_one_run_to_the_next(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    models = [tiny_model(1), tiny_model(2)]
    optimizers = [SGD(item.parameters(), lr=0.1) for item in models]
    counted, recordings = [], set()
    with flying(tmp_path):
        for train, model, optimizer in zip((with_backward, by_hand), models, optimizers, strict=True):
            with mlflow.start_run():
                train(model, optimizer, 4)
                session = mlflow_stability.current_session()
                assert session is not None
                session._meter.drain()
                counted.append(session.step)
                for item in session_folders(tmp_path / "journals"):
                    recordings |= {folder.name for folder in recording_folders(item)}
    assert counted == [4, 4]
    assert len(recordings) == 2


def test_an_optimizer_that_joins_a_training_late_is_not_a_training_of_its_own(watched: Watched) -> None:
    model = tiny_model()
    first, late = SGD(model[0].parameters(), lr=0.1), AdamW(model[2].parameters(), lr=0.01)
    for number, batch in enumerate(batches(8)):
        mse(model, batch).backward()
        first.step()
        if number >= 4:
            late.step()
        model.zero_grad()
    assert len(watched.rows()) == 8


def test_optimizers_that_are_made_for_one_parameter_at_a_time_are_one_training(watched: Watched) -> None:
    model = tiny_model()
    optimizers: dict[nn.Parameter, Optimizer] = {}
    for batch in batches(8):
        mse(model, batch).backward()
        for parameter in model.parameters():
            if parameter not in optimizers:
                optimizers[parameter] = AdamW([parameter], lr=0.01)
            optimizers[parameter].step()
        model.zero_grad()
    rows = watched.rows()
    assert len(rows) == 8
    assert not any("@track" in name for row in rows for name in row)


def test_optimizers_that_step_inside_a_backward_pass_with_checkpoints_are_one_training(watched: Watched) -> None:
    model = tiny_model()
    optimizers = {item: SGD([item], lr=0.1) for item in model.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for item in model.parameters():
        item.register_post_accumulate_grad_hook(step)
    for inputs, targets in batches(5):
        hidden = checkpoint(model[:2], inputs.requires_grad_(), use_reentrant=False)
        nn.functional.mse_loss(checkpoint(model[2], hidden, use_reentrant=False), targets).backward()
    assert len(watched.rows()) == 5


def scaled_training(model: nn.Module, scaler: GradScaler, pause: Callable[[], None]) -> list[float]:
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches(6):
        loss = mse(model, batch)
        losses.append(loss.item())
        scaled = scaler.scale(loss)
        pause()
        scaled.backward()
        pause()
        scaler.unscale_(optimizer)
        pause()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses


def test_a_loss_scaler_in_a_second_thread_is_kept_apart(watched: Watched) -> None:
    """The second thread takes a whole scaled step, with another scale, in the middle of each step of the first."""

    def other_step() -> None:
        model = tiny_model(5)
        optimizer = SGD(model.parameters(), lr=0.1)
        scaler = GradScaler("cpu", init_scale=4096.0)
        scaler.scale(100 * mse(model, next(batches(1)))).backward()
        model[0].weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        scaler.step(optimizer)  # skipped by its scaler
        scaler.update()

    def pause() -> None:
        thread = threading.Thread(target=other_step)
        thread.start()
        thread.join()

    truth = scaled_training(tiny_model(), GradScaler("cpu", init_scale=64.0, growth_interval=3), pause)
    rows = watched.rows()
    assert [row["loss"] for row in rows] == pytest.approx(truth)
    assert [row["loss_scale"] for row in rows] == [64, 64, 64, 128, 128, 128]
    assert [row["skipped_steps"] for row in rows] == [0] * 6


def test_an_optimizer_made_in_another_thread_does_not_make_that_the_training_thread(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)  # by this thread, which lives on
    thread = threading.Thread(target=with_backward, args=(model, optimizer, 3))
    thread.start()
    thread.join()
    assert len(watched.rows()) == 3
