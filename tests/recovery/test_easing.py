from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from mlflow_stability.recovery.easing import Easing, EasingClip, EasingPlan, held_rates, rates_of

STEPS = 40

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=STEPS + 1, cycle_momentum=False),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.95**step),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "step": lambda o: lr_scheduler.StepLR(o, 9, 0.3),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.97),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, STEPS, 2.0),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, 5, cycle_momentum=False),
    "warm-up": lambda o: lr_scheduler.LinearLR(o, 0.01, 1.0, 20),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2),
}


class Watching(torch.optim.SGD):
    """Remembers the rates that its steps were taken at."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.used: list[float] = []

    def step(self, closure: Any = None) -> Any:
        self.used.append(float(self.param_groups[0]["lr"]))
        return super().step(closure)


@contextmanager
def eased(easing: Easing | None) -> Iterator[list[int]]:
    step = [0]
    handles = []
    if easing is not None:
        handles = [
            register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: easing.before_step(optimizer, step[0])),
            register_optimizer_step_post_hook(lambda optimizer, args, kwargs: easing.step_ended(optimizer)),
        ]
    try:
        yield step
    finally:
        for handle in handles:
            handle.remove()


def train(scheduler: str, easing: Easing | None, rate: float | Tensor = 0.1) -> tuple[list[float], list[float]]:
    """The rates that the script saw after each step, and those that were used."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = Watching([weight], lr=rate, foreach=False)
    schedule = SCHEDULERS[scheduler](optimizer)
    seen = []
    with eased(easing) as step:
        for step[0] in range(STEPS):
            optimizer.zero_grad()
            (weight * 0).sum().backward()
            optimizer.step()
            schedule.step(*([1.0] if scheduler == "plateau" else []))
            seen.append(float(optimizer.param_groups[0]["lr"]))
    return seen, optimizer.used


@pytest.mark.parametrize("tensor", [False, True], ids=["", "tensor"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_under_every_scheduler_steps_are_smaller_and_its_own_rates_stay_as_they_are(
    scheduler: str, tensor: bool
) -> None:
    def rate() -> float | Tensor:
        return torch.tensor(0.1) if tensor else 0.1

    plan = EasingPlan(start=10, factor=0.5, steps=20)
    seen, used = train(scheduler, None, rate())
    seen_eased, used_eased = train(scheduler, Easing(plan), rate())
    assert seen_eased == seen
    for step in range(STEPS):
        expected = used[step] * plan.share(step) if step >= 10 else used[step] * 0.5
        assert used_eased[step] == pytest.approx(expected, rel=1e-6)
    assert used_eased[30:] == used[30:]
    assert used_eased[10] == pytest.approx(used[10] / 2)


def test_a_rate_that_is_a_tensor_keeps_its_address_and_its_version() -> None:
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=rate, foreach=False)
    easing = Easing(EasingPlan(start=0))
    version = rate._version
    easing.before_step(optimizer, 0)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.05)
    easing.step_ended(optimizer)
    assert torch.equal(rate, torch.tensor(0.1))
    assert rate._version == version


@given(st.floats(0.001, 1.0), st.integers(1, 1000))
def test_the_release_is_smooth_and_never_reverses(factor: float, steps: int) -> None:
    plan = EasingPlan(start=5, factor=factor, steps=steps)
    shares = [plan.share(step) for step in range(5, 7 + steps)]
    assert shares[0] == pytest.approx(factor)
    assert shares[-2:] == [1.0, 1.0]
    largest_turn = abs(math.log(factor)) * math.pi / 2 / steps + 1e-9
    for before, after in pairwise(shares):
        assert -1e-12 <= math.log(after / before) <= largest_turn


def test_a_step_that_was_interrupted_leaves_no_eased_rate_behind() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    easing = Easing(EasingPlan(start=0))
    easing.before_step(optimizer, 0)  # and no end of the step
    easing.before_step(optimizer, 1)
    easing.step_ended(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_learning_rate_that_the_optimizer_writes_in_its_step_is_kept() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    easing = Easing(EasingPlan(start=0))
    easing.before_step(optimizer, 0)
    optimizer.param_groups[0]["lr"] = 0.07
    easing.step_ended(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.07


def test_a_rate_that_jumped_is_held_down_until_the_script_asks_for_less() -> None:
    first, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Watching([{"params": [first], "lr": 1.0}, {"params": [other], "lr": 2e-3}])
    held = held_rates(optimizer, (1e-3, 1e-3), times=3.0)
    assert held == (1e-3, None)
    plan = EasingPlan(start=0, factor=0.5, steps=10, held={id(optimizer): held}, hold_doubles_in=100)
    easing, announced, used = Easing(plan), plan.first_rate(optimizer), []
    for step in range(30):
        if step == 20:
            optimizer.param_groups[0]["lr"] = 5e-4
        easing.before_step(optimizer, step)
        used.append(optimizer.param_groups[0]["lr"])
        easing.step_ended(optimizer)
        assert optimizer.param_groups[0]["lr"] == (1.0 if step < 20 else 5e-4)
        assert easing.is_over(step) is (step >= 20)
    assert used[0] == announced == pytest.approx(5e-4)
    assert used[10] == pytest.approx(1e-3 * 2**0.1)
    assert used[20:] == [5e-4] * 10


def test_reported_rates_are_those_at_which_a_step_is_taken() -> None:
    groups = [
        {"params": [nn.Parameter(torch.ones(1))]},
        {"params": [nn.Parameter(torch.ones(1))], "lr": torch.tensor(0.2)},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.1, foreach=False)
    easing = Easing(EasingPlan(start=0))
    announced = easing.plan.first_rate(optimizer)
    easing.before_step(optimizer, 0)
    assert rates_of(optimizer) == pytest.approx((0.05, 0.1))
    assert announced == rates_of(optimizer)[0]
    easing.step_ended(optimizer)
    assert rates_of(optimizer) == pytest.approx((0.1, 0.2))
    assert held_rates(optimizer, (math.nan, 0.01), 3.0) == (None, 0.01)


def test_a_rate_that_is_a_tensor_is_held_down_too() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=torch.tensor(1.0), foreach=False)
    held = held_rates(optimizer, (1e-3,), times=3.0)
    easing = Easing(EasingPlan(start=0, factor=1.0, held={id(optimizer): held}))
    easing.before_step(optimizer, 0)
    assert rates_of(optimizer) == pytest.approx((1e-3,))
    easing.step_ended(optimizer)
    assert rates_of(optimizer) == (1.0,)


def test_a_state_from_the_start_of_a_warm_up_does_not_hold_the_rate_at_zero() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert held_rates(optimizer, (0.0,), times=3.0) == (None,)


def test_parameters_that_are_added_after_a_rollback_have_no_limit() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    easing = Easing(EasingPlan(start=0, held={id(optimizer): held_rates(optimizer, (1e-3,), times=3.0)}))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 1.0})
    easing.before_step(optimizer, 0)
    assert rates_of(optimizer) == pytest.approx((5e-4, 0.5))


def test_a_hold_ends_by_itself() -> None:
    plan = EasingPlan(start=0, hold_doubles_in=100)
    assert plan.ceiling(1e-3, 0) == 1e-3
    assert plan.ceiling(1e-3, 1000) == pytest.approx(1.024)
    assert math.isfinite(plan.ceiling(1e-3, 10**9))


def test_a_share_that_lasts_is_reached_smoothly_and_never_ends() -> None:
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    easing = Easing(EasingPlan(10, factor=0.5, steps=20, lasting=0.1))
    used = []
    for step in (10, 20, 30, 10_000):
        easing.before_step(optimizer, step)
        used.append(optimizer.param_groups[0]["lr"])
        easing.step_ended(optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.5
    assert used[0] == pytest.approx(0.025)
    assert used[0] < used[1] < used[2] == used[3] == pytest.approx(0.05)
    assert not easing.is_over(10_000)


def test_a_jump_is_judged_by_the_share_that_lasts() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    assert held_rates(optimizer, (0.05,), 3.0, lasting=0.1) == (None,)
    optimizer.param_groups[0]["lr"] = 5.0
    (held,) = held_rates(optimizer, (0.05,), 3.0, lasting=0.1)
    easing = Easing(EasingPlan(10, factor=1.0, steps=1, lasting=0.1, held={id(optimizer): (held,)}))
    easing.before_step(optimizer, 11)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05, rel=0.01)


def clip_with(norms: list[float]) -> EasingClip:
    clip = EasingClip(times=2.0)
    for norm in norms:
        clip.take(norm)
    return clip


def test_gradients_longer_than_a_multiple_of_their_usual_norm_are_shortened_to_it() -> None:
    clip = clip_with([0.9, 1.0, 1.1, 50.0, 1.0] * 10)
    gradient = torch.full((4,), 10.0)
    clip.before_step([gradient], torch.tensor(20.0))
    assert float(gradient.norm()) == pytest.approx(2.0)


def test_gradients_that_are_no_longer_stay_bit_identical() -> None:
    clip = clip_with([1.0] * 30)
    gradient = torch.rand(4) / 2
    before = gradient.clone()
    clip.before_step([gradient], gradient.norm())
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("norms", [[], [1.0] * 19, [float("nan")] * 50])
def test_where_nothing_is_known_of_what_is_usual_nothing_is_clipped(norms: list[float]) -> None:
    gradient = torch.full((4,), 1e9)
    clip_with(norms).before_step([gradient], torch.tensor(2e9))
    assert gradient.tolist() == [1e9] * 4
