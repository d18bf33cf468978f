from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from scenarios.watching import Row, Watched, batches, mse, tiny_model, true_norm
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer


class TwiceDecayed(AdamW):
    """Calls the step that it inherits, as many subclasses do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.999)
        return super().step(closure)


class SharpnessAware(Optimizer):
    """SAM as it is usually written: a climb, a second gradient, and the step of another optimizer."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.base = SGD(self.param_groups, lr=lr)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                climb = 0.05 * parameter.grad
                parameter.add_(climb)
                self.state[parameter]["climb"] = climb
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(self.state[parameter]["climb"])
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:  # type: ignore[override]
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


def test_a_subclass_that_calls_the_step_it_inherits_makes_one_step(watched: Watched) -> None:
    model = tiny_model()
    optimizer = TwiceDecayed(model.parameters(), lr=0.01)
    truth: list[Row] = []
    for batch in batches(4):
        loss = mse(model, batch)
        loss.backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.01})
        optimizer.step()
        optimizer.zero_grad()
    watched.must_be(truth)


@pytest.mark.parametrize("style", ["two calls", "closure"])
def test_sam_is_recorded_by_the_gradient_that_it_steps_with(watched: Watched, style: str) -> None:
    model = tiny_model()
    optimizer = SharpnessAware(model.parameters(), lr=0.1)
    truth: list[Row] = []
    for batch in batches(4):
        mse(model, batch).backward()

        def second(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
            loss = mse(model, batch)
            loss.backward()
            norm = true_norm(model.parameters())
            truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.1})
            return loss

        if style == "closure":
            optimizer.step(second)
        else:
            optimizer.first_step()
            second()
            optimizer.second_step()
    watched.must_be(truth)


def test_muon_and_adamw_make_one_step_with_one_norm(watched: Watched) -> None:
    model = tiny_model()
    weights = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizers = [torch.optim.Muon(weights, lr=0.02), AdamW(biases, lr=0.001)]
    truth: list[Row] = []
    for batch in batches(5):
        loss = mse(model, batch)
        loss.backward()
        truth.append(
            {
                "loss": loss.item(),
                "micro_batches": 1,
                "grad_norm": true_norm(model.parameters()),
                "learning_rate": 0.02,
                "learning_rate@optimizer_1": 0.001,
            }
        )
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    watched.must_be(truth)


def test_an_optimizer_that_steps_every_other_time_keeps_the_count_right(watched: Watched) -> None:
    model = tiny_model()
    often, rarely = SGD(model[0].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.01)
    losses = []
    for number, batch in enumerate(batches(6)):
        loss = mse(model, batch)
        loss.backward()
        losses.append(loss.item())
        often.step()
        if number % 2:
            rarely.step()
        often.zero_grad()
        rarely.zero_grad()
    rows = watched.rows()
    assert [row["loss"] for row in rows] == pytest.approx(losses)
    # Its very first step comes when the capture seemed to be over; from then on it is waited for.
    assert ["learning_rate@optimizer_1" in row for row in rows] == [False, False, False, True, False, True]


def test_the_two_halves_of_a_gan_are_two_tracks(watched: Watched) -> None:
    critic, generator = tiny_model(0), nn.Linear(2, 4)
    critic_optimizer = Adam(critic.parameters(), lr=0.01)
    generator_optimizer = Adam(generator.parameters(), lr=0.02)
    truth: list[Row] = []
    for real, _ in batches(4):
        noise = torch.ones(8, 2)
        critic_optimizer.zero_grad()
        on_real, on_fake = -critic(real).mean(), critic(generator(noise).detach()).mean()
        on_real.backward()
        on_fake.backward()
        truth.append(
            {
                "loss": on_real.item() + on_fake.item(),
                "micro_batches": 2,
                "grad_norm": true_norm(critic.parameters()),
                "learning_rate": 0.01,
            }
        )
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        loss = -critic(generator(noise)).mean()
        loss.backward()
        truth.append(
            {
                "loss@track_1": loss.item(),
                "micro_batches@track_1": 1,
                "grad_norm@track_1": true_norm(generator.parameters()),
                "learning_rate@optimizer_1": 0.02,
            }
        )
        generator_optimizer.step()
    watched.must_be(truth)


def test_one_optimizer_per_parameter_in_backward_makes_one_step(watched: Watched) -> None:
    model = tiny_model()
    parameters = list(model.parameters())
    norms: list[float] = []
    losses: list[float] = []
    for parameter in parameters:
        optimizer = SGD([parameter], lr=0.1)

        def step(parameter: Tensor, optimizer: SGD = optimizer) -> None:
            norms[-1] = (norms[-1] ** 2 + true_norm([parameter]) ** 2) ** 0.5
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for batch in batches(4):
        loss = mse(model, batch)
        losses.append(loss.item())
        norms.append(0.0)
        loss.backward()
    rows = watched.rows()
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    assert [row["micro_batches"] for row in rows] == [1.0] * 4
    assert [row["grad_norm"] for row in rows] == pytest.approx(norms, rel=1e-5)


def test_lbfgs_is_recorded_by_its_first_evaluation(watched: Watched) -> None:
    model = tiny_model()
    optimizer = LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    batch = next(batches(1))
    truth: list[Row] = []
    evaluations = 0
    for _ in range(3):
        first = True

        def closure() -> Tensor:
            nonlocal first, evaluations
            optimizer.zero_grad()
            loss = mse(model, batch)
            loss.backward()
            evaluations += 1
            if first:
                norm = true_norm(model.parameters())
                truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.5})
                first = False
            return loss

        optimizer.step(closure)
    assert evaluations > 6
    watched.must_be(truth)


def test_two_models_one_after_the_other_are_two_tracks(watched: Watched) -> None:
    losses: dict[str, list[float]] = {"loss": [], "loss@track_1": []}
    for name in losses:
        model = tiny_model()
        optimizer = SGD(model.parameters(), lr=0.1)
        for batch in batches(3):
            loss = mse(model, batch)
            loss.backward()
            losses[name].append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        del model, optimizer
    rows = watched.rows()
    for name, expected in losses.items():
        assert [row[name] for row in rows if name in row] == pytest.approx(expected)
    assert len(rows) == 6


def test_a_new_optimizer_for_the_same_model_goes_on_with_its_track(watched: Watched) -> None:
    model = tiny_model()
    for number in range(2):
        optimizer = SGD(model.parameters(), lr=0.1 / (number + 1))
        for batch in batches(3):
            mse(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = watched.rows()
    assert len(rows) == 6
    assert all("loss" in row for row in rows)


def test_gradients_set_by_hand_without_a_backward_are_steps_too(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    norms = []
    for batch in batches(3):
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(mse(model, batch), parameters), strict=True):
            parameter.grad = gradient
        norms.append(true_norm(parameters))
        optimizer.step()
    assert [row["grad_norm"] for row in watched.rows()] == pytest.approx(norms, rel=1e-5)
