from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recovery.guarded_training import differences, picture
from recovery.listening import listening
from recovery.planted import LAST, PLANTS, Net, Plant, Step, a_hook_on_the_output, a_logarithm, an_overflow, last, train
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts, NanSource
from mlflow_stability.recovery.nan_origin.batch_replay import Replay, replay_step
from mlflow_stability.recovery.nan_origin.origin_checks import origin_event
from mlflow_stability.vocabulary.result import Action, Remedy


def replayed(plant: Plant) -> Replay:
    """Train until the broken step is about to be taken, and run its batch again."""
    torch.manual_seed(0)
    capture, watch = listening(plant.model)
    capture.step = 1
    items: list[Replay] = []

    def hear(step: int, model: nn.Module, outputs: Tensor, loss: Tensor, optimizer: Optimizer) -> None:
        capture.backward_began(loss)
        if step == LAST:
            items.append(replay_step(capture.passes(step), capture.loss, [optimizer])[1])
        capture.step = step + 1

    train(plant, hear, capture)
    watch.remove()
    return items[0]


@pytest.mark.parametrize("make", PLANTS, ids=lambda letter: letter.__name__)
def test_the_place_of_the_first_non_finite_number_is_named(make: Callable[[], Plant]) -> None:
    plant = make()
    findings = replayed(plant)
    origin = findings.origin
    assert origin is not None, findings
    module = findings.first_broken if origin.source == "input" else origin.module
    assert (origin.source, module, origin.operation) == (plant.source, plant.module, plant.operation)
    assert plant.line in origin.line


@pytest.mark.parametrize(
    "make", [plant for plant in PLANTS if plant().source == "loss"], ids=lambda letter: letter.__name__
)
def test_an_origin_in_the_loss_function_is_reported_in_a_complete_sentence(make: Callable[[], Plant]) -> None:
    origin = replayed(make()).origin
    assert origin is not None
    message = origin_event(LAST, origin, "").message
    assert message.startswith(f"Step {LAST}: the first non-finite value comes from the loss function, not from")
    assert f"; the loss is non-finite: possible source {origin.operation}." in message


def test_a_gradient_that_a_hook_on_the_output_broke_is_not_put_down_to_the_loss_function_alone() -> None:
    origin = replayed(a_hook_on_the_output()).origin
    assert origin is not None
    event = origin_event(LAST, origin, "")
    assert "comes from the hook on the model's output or from the loss function, which returned" in event.message
    assert event.remedies[0] == Remedy(Action.CHECK_HOOK_OF_OUTPUT)


def test_the_event_says_it_with_the_users_own_line_and_numbers() -> None:
    origin = replayed(a_logarithm()).origin
    assert origin is not None
    event = origin_event(LAST, origin, "between")
    assert "comes from log in between (planted.py:" in event.message
    assert "which produced 24 NaN from float32 6x4 from -1.9 to -0.09295" in event.message
    assert (event.kind, event.place) == ("nan_origin", "between")
    assert isinstance(event.facts, NanOriginFacts)
    assert (event.facts.source, event.facts.operations) == (NanSource.FORWARD, ("log",))
    assert event.metrics["output.nan"] == 24.0
    assert event.metrics["input.greatest"] < 0


def test_an_infinity_that_is_meant_is_no_birth() -> None:
    """Half of each row is ruled out, the softmax is sound, and what breaks comes later."""

    def attend(x: Tensor) -> Tensor:
        kept = x.masked_fill(torch.tensor([True, True, False, False]), -math.inf).softmax(-1)
        return (kept + x.abs().amax() * 1e6 - 2).log()

    plant = Plant(Net(Step(attend), nn.Identity()), "forward", "between", "log", batch=last(torch.zeros_like))
    findings = replayed(plant)
    assert findings.origin is not None
    assert (findings.origin.operation, findings.origin.nan_by) == ("log", "")


def test_an_overflow_is_named_rather_than_the_nan_it_led_to() -> None:
    origin = replayed(an_overflow()).origin
    assert origin is not None
    assert (origin.operation, origin.nan_by) == ("mm", "addmm")
    assert "the largest float16 is 65504" in origin_event(LAST, origin, "between").message


class Recurrent(nn.Module):
    """Torch's recurrent modules keep a list of their weights beside."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        result, _ = self.memory(x.unsqueeze(0))
        result = checkpoint(self.drop, self.norm(result[0]), use_reentrant=False)
        output: Tensor = (self.last(result) * x.abs().amax()).square().sum(-1).sqrt()
        return output


def test_an_origin_is_found_through_recurrent_modules_and_activation_checkpoints() -> None:
    origin = replayed(Plant(Recurrent(), "backward", "", "sqrt", batch=last(torch.zeros_like))).origin
    assert origin is not None
    assert (origin.source, origin.operation) == ("backward", "sqrt")
    assert "Recurrent.forward" in origin.line


def test_the_broken_pass_of_a_step_is_the_one_that_is_replayed() -> None:
    torch.manual_seed(0)
    model = Net(a_logarithm().model.between, nn.Identity())
    capture, _ = listening(model)
    sound = torch.ones(6, 4)
    for batch in (sound, -sound, sound * 2):
        model(batch).square().mean().backward()
    batch, result = replay_step(capture.passes(0))
    assert torch.equal(batch.args[0], -sound)
    assert result.origin is not None
    assert result.origin.operation == "log"


@pytest.mark.parametrize("make", PLANTS, ids=lambda letter: letter.__name__)
def test_looking_for_the_place_changes_nothing(make: Callable[[], Plant]) -> None:
    def picture_at_the_end(looked: bool) -> list[Any]:
        seen: list[Any] = []

        def hear(step: int, model: nn.Module, outputs: Tensor, loss: Tensor, optimizer: Optimizer) -> None:
            capture.backward_began(loss)
            if step == LAST:
                if looked:
                    replay_step(capture.passes(step), capture.loss, [optimizer])
                seen.extend(picture(model, optimizer))
                seen.extend(
                    None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()
                )
                seen.extend(parameter._version for parameter in model.parameters())
            capture.step = step + 1

        torch.manual_seed(0)
        plant = make()
        capture, watch = listening(plant.model)
        capture.step = 1
        train(plant, hear, capture)
        watch.remove()
        return [*seen, torch.get_rng_state()]

    assert differences(picture_at_the_end(False), picture_at_the_end(True)) == []
