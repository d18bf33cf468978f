from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recovery.guarded_training import differences, guarding, picture
from recovery.optimizer_zoo import SAM
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from mlflow_stability.recovery.skipping import step_guard
from mlflow_stability.recovery.skipping.step_guard import StepGuard

NAN = float("nan")


def loss_of(model: nn.Module, number: int) -> Tensor:
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
    output: Tensor = model(inputs.to(next(model.parameters()).dtype)).square().mean()
    return output


def lbfgs_training(line_search: str | None, breaks: Callable[[int, int], bool]) -> tuple[list[bool], list[bool], int]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3, line_search_fn=line_search)
    changed, finite = [], []
    with guarding(model) as meter:
        for step in range(5):
            evaluations = 0

            def closure(step: int = step) -> Tensor:
                nonlocal evaluations
                optimizer.zero_grad()
                loss = loss_of(model, 0)
                if breaks(step, evaluations):
                    loss = loss * NAN
                loss.backward()
                evaluations += 1
                return loss

            before = picture(model, optimizer)
            optimizer.step(closure)
            changed.append(bool(differences(before, picture(model, optimizer))))
            finite.append(all(bool(parameter.isfinite().all()) for parameter in model.parameters()))
    return changed, finite, meter.undone_late


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("broken_step", [0, 3])
def test_lbfgs_whose_first_evaluation_is_broken_changes_nothing(line_search: str | None, broken_step: int) -> None:
    changed, finite, _ = lbfgs_training(line_search, lambda step, evaluation: step == broken_step)
    assert changed == [step != broken_step for step in range(5)]
    assert all(finite)


def test_lbfgs_that_ends_with_broken_weights_is_taken_back_whole() -> None:
    changed, finite, undone = lbfgs_training(None, lambda step, evaluation: step == 2 and evaluation == 1)
    assert changed == [True, True, False, True, True]
    assert all(finite)
    assert undone == 1


def test_lbfgs_whose_first_evaluation_had_begun_before_it_was_known_is_taken_back_too() -> None:
    model = nn.Linear(4, 2)
    optimizer, guard, capture = torch.optim.LBFGS(model.parameters()), StepGuard(), object()
    before = picture(model)
    loss_of(model, 0).backward()
    asked = optimizer, capture, (), torch.tensor(1.0), (), None
    assert guard.sound_at_once(*asked) or not guard.before_step(*asked).broken
    with torch.no_grad():
        model.weight.fill_(NAN)  # what a later evaluation leads to
    assert guard.step_ended(optimizer)
    assert differences(before, picture(model)) == []


class TwiceAsking(torch.optim.SGD):
    """Evaluates its closure twice, as sharpness-aware optimizers do."""

    def step(self, closure: Callable[[], Tensor]) -> Tensor:  # type: ignore[override]
        with torch.enable_grad():
            closure()
            loss = closure()
        super().step()
        return loss


def test_gradients_of_a_second_evaluation_do_not_slip_through() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = TwiceAsking(model.parameters(), lr=0.1, momentum=0.9)
    moved = []
    with guarding(model):
        for step in range(4):
            asked = 0

            def closure(step: int = step) -> Tensor:
                nonlocal asked
                optimizer.zero_grad()
                loss = loss_of(model, step) + (NAN if step == 2 and asked == 0 else 0.0)
                loss.backward()
                asked += 1
                return loss

            before = picture(optimizer), [parameter.detach().clone() for parameter in model.parameters()]
            optimizer.step(closure)
            after = picture(optimizer), [parameter.detach().clone() for parameter in model.parameters()]
            moved.append(bool(differences(before, after)))
            assert all(parameter.grad is not None for parameter in model.parameters())
    assert moved == [True, True, False, True]


@pytest.mark.parametrize("broken_step", [0, 2])
def test_sam_which_moves_the_weights_before_its_closure_changes_nothing(broken_step: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = SAM(model.parameters())
    moved = []
    with guarding(model) as meter:
        for step in range(5):

            def closure(step: int = step) -> Tensor:
                loss = loss_of(model, step) * (NAN if step == broken_step else 1.0)
                loss.backward()
                return loss

            before = picture(model, optimizer.base)
            closure()
            optimizer.step(closure)
            moved.append(bool(differences(before, picture(model, optimizer.base))))
            assert all(parameter.grad is not None for parameter in model.parameters())
            optimizer.zero_grad()
    assert moved == [step != broken_step for step in range(5)]
    assert meter.undone_late == 0


def test_an_optimizer_that_asks_first_is_not_copied_at_sound_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Optimizer] = []

    def copied(optimizer: Optimizer) -> Callable[[], None]:
        copies.append(optimizer)
        return lambda: None

    monkeypatch.setattr(step_guard, "copy_weights", copied)
    model = nn.Linear(4, 2)
    asking = TwiceAsking(model.parameters(), lr=0.1)
    for optimizer in (asking, SGD(model.parameters(), lr=0.1)):
        with guarding(model):
            for step in range(4):

                def closure(step: int = step) -> Tensor:
                    model.zero_grad()
                    loss = loss_of(model, step)
                    loss.backward()
                    return loss

                optimizer.step(closure)
    assert copies == [asking]  # at its first step, when it is not known yet; torch's own are known
