"""Settings of modules and optimizers that are nearly always a mix-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlflow_stability.kinds.first_look.accumulation import AccumulationFacts
from mlflow_stability.kinds.first_look.settings import (
    OptimizedTwiceFacts,
    RecreatedFacts,
    StrongDropoutFacts,
    UnusedScheduleFacts,
    ZeroGroupFacts,
)
from mlflow_stability.probes.first_look.module_settings import (
    Accumulation,
    Recreated,
    SameLoss,
    Schedules,
    SharedParameters,
    ZeroGroups,
    strong_dropout,
)
from mlflow_stability.vocabulary.result import Finding, Severity


def test_a_dropout_that_drops_nearly_all_is_found_in_training_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Dropout(0.95))
    finding = strong_dropout([model], 10)
    assert finding is not None
    assert (finding.kind, finding.severity) == ("dropout_strong", Severity.WARNING)
    assert finding.facts == StrongDropoutFacts("2", 0.95)
    assert finding.message.startswith("Module 2 is a dropout with p=0.95: it sets 95% of the values to zero")
    assert strong_dropout([model.eval()], 10) is None
    assert strong_dropout([nn.Sequential(nn.Dropout(0.5), nn.Dropout(1.0))], 10) is None


class Wrapper(torch.optim.SGD):
    """Steps with another optimizer, as SAM does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, lr=0.1)
        self.inner = inner


def looks(first: torch.optim.Optimizer, second: torch.optim.Optimizer, *steps: int) -> list[Finding]:
    shared = SharedParameters()
    result = [shared.look(optimizer, step) for step in steps for optimizer in (first, second)]
    return [finding for finding in result if finding is not None]


def with_gradients(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def test_two_optimizers_of_the_same_parameters_are_found_at_the_second_look() -> None:
    model = with_gradients(nn.Linear(4, 4))
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    (finding,) = looks(first, second, 10, 20)
    assert (finding.kind, finding.severity, finding.step) == ("optimized_twice", Severity.WARNING, 20)
    assert finding.facts == OptimizedTwiceFacts(2, 1.0)
    assert looks(first, second, 10) == []


def test_alternating_optimizers_with_their_own_gradients_are_not_reported() -> None:
    model = nn.Linear(4, 4)
    shared, optimizers = SharedParameters(), [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    for set_to_none in (True, False):
        for step in (10, 20, 100):
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=set_to_none)
                model(torch.ones(2, 4)).sum().backward()
                assert shared.look(optimizer, step) is None
                optimizer.step()


def test_optimizers_of_other_parameters_and_wrappers_are_not_reported() -> None:
    model, other = with_gradients(nn.Linear(4, 4)), with_gradients(nn.Linear(4, 4))
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    assert looks(first, torch.optim.SGD(other.parameters(), lr=0.1), 10, 20, 100) == []
    assert looks(first, first, 10, 20, 100) == []
    assert looks(first, Wrapper(first), 10, 20, 100) == []


def mean(**settings: Any) -> Tensor:
    return functional.cross_entropy(torch.zeros(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0]), **settings)


def accumulated(make: Callable[[], Tensor], passes: int = 4, steps: int = 5) -> list[Finding]:
    accumulation = Accumulation()
    result = [accumulation.note(make(), step) for step in range(2, 2 + steps) for _ in range(passes)]
    return [finding for finding in result if finding is not None]


def test_means_that_nothing_divides_are_found_once() -> None:
    (finding,) = accumulated(mean)
    assert (finding.severity, finding.step, finding.facts) == (Severity.INFO, 4, AccumulationFacts(4))
    assert "not divided by 4" in finding.message


@pytest.mark.parametrize(
    ("make", "passes"),
    [(lambda: mean() / 4, 4), (lambda: mean(reduction="sum"), 4), (mean, 2)],
    ids=["divided", "a sum", "two losses"],
)
def test_other_accumulation_is_not_reported(make: Callable[[], Tensor], passes: int) -> None:
    assert accumulated(make, passes) == []


def repeated(*losses_of_steps: list[Tensor]) -> list[Finding]:
    same = SameLoss()
    result = [same.note(loss, step) for step, losses in enumerate(losses_of_steps, 2) for loss in losses]
    return [finding for finding in result if finding is not None]


def test_two_passes_from_one_loss_in_three_steps_are_found_once() -> None:
    losses = [mean() for _ in range(5)]
    (finding,) = repeated(*([loss, loss] for loss in losses))
    assert (finding.kind, finding.severity, finding.step) == ("repeated_backward", Severity.INFO, 4)
    assert repeated(*([loss, mean()] for loss in losses)) == []
    assert repeated(*([loss, loss] if number % 2 else [loss] for number, loss in enumerate(losses))) == []


def test_a_loss_that_the_script_adds_to_is_another_one() -> None:
    same, losses = SameLoss(), [mean() for _ in range(5)]
    for step, loss in enumerate(losses):
        assert same.note(loss, step) is None
        loss += mean()
        assert same.note(loss, step) is None


STEPS = (1, 2, 3, 10, 20, 100)
Make = Callable[[nn.Module], torch.optim.Optimizer]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize(("make", "name"), [(adam, "Adam"), (momentum, "SGD"), (sgd, "")])
def test_an_optimizer_that_is_made_for_each_step_is_found_where_it_keeps_averages(make: Make, name: str) -> None:
    model, look = nn.Linear(4, 4), Recreated()
    result = [look.look(make(model), step) for step in STEPS]
    assert [None if finding is None else finding.facts for finding in result] == [
        *[None] * 4,
        RecreatedFacts(name, 5) if name else None,
        None,
    ]


def test_optimizers_that_stay_or_have_other_parameters_are_not_reported() -> None:
    model, other, look = nn.Linear(4, 4), nn.Linear(4, 4), Recreated()
    first, second = adam(model), adam(model)  # of the same parameters, by turns
    assert [look.look((first, second)[step % 2], step) for step in STEPS] == [None] * 6
    assert [look.look(adam(other), step) for step in STEPS[:3]] == [None] * 3  # a new one in each of three steps
    kept = adam(other)
    assert [look.look(kept, step) for step in STEPS[3:]] == [None] * 3
    tasks = [nn.Linear(2, 2) for _ in STEPS]
    assert [look.look(adam(task), step) for task, step in zip(tasks, STEPS, strict=True)] == [None] * 6


def groups(*rates: float) -> torch.optim.Optimizer:
    layers = [with_gradients(nn.Linear(4, 4)) for _ in rates]
    held = [{"params": list(layer.parameters()), "lr": rate} for layer, rate in zip(layers, rates, strict=True)]
    return torch.optim.SGD(held, lr=0.1)


def zero_groups(optimizer: torch.optim.Optimizer) -> list[Finding]:
    look = ZeroGroups()
    result = [look.look(optimizer, step, 3) for step in STEPS[3:]]
    return [finding for finding in result if finding is not None]


def test_a_group_with_a_learning_rate_of_zero_is_found_at_the_third_look() -> None:
    (finding,) = zero_groups(groups(0.02, 0.0))
    assert (finding.severity, finding.step, finding.facts) == (Severity.INFO, 100, ZeroGroupFacts(1, 0.5, 0.02))


def test_a_group_that_a_schedule_has_raised_by_then_is_not_reported() -> None:
    optimizer, look = groups(0.1, 0.0), ZeroGroups()
    assert [look.look(optimizer, step, 3) for step in (10, 20)] == [None, None]
    optimizer.param_groups[1]["lr"] = 0.1
    assert look.look(optimizer, 100, 3) is None


def test_groups_without_gradients_and_a_rate_of_zero_for_all_are_not_reported() -> None:
    frozen = groups(0.1, 0.0)
    for parameter in frozen.param_groups[1]["params"]:
        parameter.grad = None
    assert zero_groups(frozen) == zero_groups(groups(0.0, 0.0)) == zero_groups(groups(0.1, 0.1)) == []


def scheduled(old: torch.optim.Optimizer, used: torch.optim.Optimizer, *, stepped: bool = True) -> list[Finding]:
    """Look three times at the schedule of one optimizer, while another one takes the steps."""
    schedule = torch.optim.lr_scheduler.ExponentialLR(old, 0.5)
    del old
    looks, findings = Schedules(), []
    for step in (10, 20, 100):
        used.step()
        if stepped:
            schedule.step()
        findings.append(looks.look([used], step))
    return [finding for finding in findings if finding is not None]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(with_gradients(model).parameters(), lr=0.1, momentum=0.9)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_schedule_of_an_optimizer_that_was_made_again_is_found() -> None:
    model = nn.Linear(3, 2)
    finding = scheduled(sgd(model), sgd(model))[0]
    assert (finding.step, finding.severity) == (20, Severity.WARNING)
    assert finding.facts == UnusedScheduleFacts("ExponentialLR", 0.025, 0.1)
    assert finding.message == (
        "ExponentialLR changes an optimizer that took no step up to step 20; another one trains the same parameters, "
        "at 0.1 in place of 0.025: the schedule has no effect."
    )
    kept = sgd(model)
    assert scheduled(kept, sgd(model))[0].severity is Severity.INFO


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_schedules_that_rest_and_those_of_other_optimizers_are_not_reported() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    used = sgd(model)
    assert scheduled(used, used) == scheduled(Wrapper(used), used) == scheduled(sgd(other), used) == []
    assert scheduled(sgd(model), used, stepped=False) == []
    before = sgd(model)
    before.step()  # it was used up to here
    assert scheduled(before, used) == []
