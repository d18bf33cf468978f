"""Odd but real loops: what they do with torch is the same with us in it."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import torch
from scenarios.watching import Watched, batches, mse, tiny_model, true_norm
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from mlflow_stability.probes.hooks.guarded_hooks import PartGuard


def test_backward_takes_a_generator_and_gradients_come_all_the_same(watched: Watched) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = SGD([parameter], lr=0.1)
    torch.autograd.backward(part for part in [parameter.sum(), (2 * parameter).sum()])
    assert parameter.grad is not None
    optimizer.step()
    watched.must_be([{"loss": 9.0, "micro_batches": 1.0, "grad_norm": 27**0.5, "learning_rate": 0.1}])


class TakesAModel(SGD):
    def step(self, model: nn.Module) -> int:  # type: ignore[override]
        super().step()
        return len(list(model.named_parameters()))


def test_a_step_that_takes_a_model_gets_the_model(watched: Watched) -> None:
    model = tiny_model()
    optimizer = TakesAModel(model.parameters(), lr=0.1)
    batch = next(batches(1))
    mse(model, batch).backward()
    norm = true_norm(model.parameters())
    assert optimizer.step(model) == 4
    (row,) = watched.rows()
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.slow
def test_an_optimizer_for_every_sample_makes_no_endless_list_of_names(watched: Watched) -> None:
    for _ in range(40):
        parameter = nn.Parameter(torch.ones(2))
        parameter.sum().backward()
        SGD([parameter], lr=0.1).step()
    names = {name for row in watched.rows() for name in row}
    assert len({name for name in names if name.startswith("loss")}) == 16


class Closure:
    def __init__(self, model: nn.Module, batch: Any, optimizer: Optimizer) -> None:
        self.model, self.batch, self.optimizer, self.evals = model, batch, optimizer, 0

    def __call__(self) -> Tensor:
        self.evals += 1
        self.optimizer.zero_grad()
        loss = mse(self.model, self.batch)
        loss.backward()
        return loss


class AsksItsClosure(SGD):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        closure.evals += 10
        return loss


def test_a_closure_that_is_an_object_stays_one(watched: Watched) -> None:
    model = tiny_model()
    optimizer = AsksItsClosure(model.parameters(), lr=0.1)
    closure = Closure(model, next(batches(1)), optimizer)
    loss = optimizer.step(closure)
    assert closure.evals == 11
    (row,) = watched.rows()
    assert row["loss"] == pytest.approx(loss.item())


def test_of_two_threads_that_train_at_once_the_first_is_recorded_and_both_train(watched: Watched) -> None:
    def train(model: nn.Module, steps: int, ready: threading.Event, go: threading.Event) -> None:
        optimizer = SGD(model.parameters(), lr=0.1)
        for batch in batches(steps):
            mse(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            ready.set()
            go.wait(60)

    alone = tiny_model()
    ready, go, gone = threading.Event(), threading.Event(), threading.Event()
    gone.set()
    models = [tiny_model(), tiny_model()]
    first = threading.Thread(target=train, args=(models[0], 5, ready, go))
    first.start()
    ready.wait(60)
    second = threading.Thread(target=train, args=(models[1], 5, threading.Event(), gone))
    second.start()  # trains from beginning to end while the first is in the middle
    second.join()
    go.set()
    first.join()
    watched.watch.remove()
    train(alone, 5, threading.Event(), go)
    for model in models:
        assert all(
            torch.equal(first, other) for first, other in zip(alone.parameters(), model.parameters(), strict=True)
        )
    assert len(watched.rows()) == 5


class TimeoutFromOutsideError(Exception):
    pass


def test_what_a_signal_handler_of_the_script_raises_inside_our_code_reaches_the_script() -> None:
    def handler(number: int, frame: Any) -> None:
        raise TimeoutFromOutsideError("time is up")

    failed: list[str] = []
    guard = PartGuard(strict=False, on_failure=lambda part, error: failed.append(part))

    def ours() -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutFromOutsideError):
            guard("a part", ours)()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not failed
    assert not guard.off


def test_a_dry_run_of_shapes_alone_is_not_a_training(watched: Watched) -> None:
    model = nn.Linear(4, 2, device="meta")
    optimizer = SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4, device="meta")).sum().backward()
    optimizer.step()
    assert watched.rows() == []
