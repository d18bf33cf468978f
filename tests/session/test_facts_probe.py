"""Facts and changes of real trainings, from their hooks into a journal."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from session.watched_facts import Watched
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, lr_scheduler

from mlflow_stability.vocabulary.result import Severity, Source


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    training = Watched(tmp_path)
    yield training
    training.remove()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, rows: int = 8, micro: int = 1) -> None:
    for _ in range(steps):
        for _ in range(micro):
            model(torch.randn(rows, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_training_tells_all_about_itself_by_its_tenth_step(watched: Watched) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = AdamW(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    train(model, optimizer, 1, micro=2)
    first = watched.facts()
    assert (first["optimizer"], first["learning_rate"], first["model"]) == ("AdamW", "0.01", "Sequential")
    assert (first["scheduler"], first["scheduler.T_max"]) == ("CosineAnnealingLR", "50")
    assert "batch" not in first
    for _ in range(10):
        train(model, optimizer, 1, micro=2)
        scheduler.step()
    later = watched.facts()
    assert (later["batch"], later["accumulation"]) == ("float32[8, 4]", "2")
    assert watched.events() == []


def test_changes_on_the_way_are_events_that_replay_does_not_look_for(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    optimizer = AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, 25)
    optimizer.param_groups[0]["weight_decay"] = 0.3
    train(model, optimizer, 30, rows=16, micro=4)
    messages = {event.message.split(" changed")[0]: event for event in watched.events()}
    assert set(messages) == {
        "weight_decay of AdamW",
        "The shape of the batches",
        "The number of micro-batches in a step",
    }
    assert all(
        message.source is Source.REPORTED and message.kind == "configuration_changed" for message in messages.values()
    )
    assert messages["weight_decay of AdamW"].step == 30


def test_both_halves_of_a_gan_have_facts_though_they_alternate(watched: Watched) -> None:
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = SGD(maker.parameters(), lr=0.1), AdamW(judge.parameters(), lr=0.2)
    for _ in range(20):
        train(maker, optimizers[0], 1)
        train(judge, optimizers[1], 1)
    facts = watched.facts()
    assert (facts["optimizer"], facts["optimizer_1"], facts["optimizer_1.learning_rate"]) == ("SGD", "AdamW", "0.2")
    assert (facts["model"], facts["model_1"], facts["model_1.parameters_total"]) == ("Linear", "Linear", "5")
    assert watched.events() == []


def test_a_parameter_without_an_optimizer_is_reported_at_the_tenth_step(watched: Watched) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    train(model, SGD(model[1].parameters(), lr=0.1), 12)
    (event,) = watched.events()
    assert (event.kind, event.step, event.metrics["parameters"]) == ("model_lint", 10, 2.0)


@pytest.mark.parametrize("make", [SGD, AdamW])
def test_halves_that_are_frozen_in_turns_are_not_frozen(watched: Watched, make: Any) -> None:
    halves = nn.ModuleDict({"maker": nn.Linear(4, 4), "judge": nn.Linear(4, 4)})
    optimizers = {name: make(half.parameters(), lr=0.1) for name, half in halves.items()}
    for _ in range(12):
        for name, optimizer in optimizers.items():
            for other, half in halves.items():
                half.requires_grad_(other == name)
            train(halves[name], optimizer, 1)
    assert watched.events() == []


def test_parameters_that_were_frozen_from_the_start_are_reported(watched: Watched) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    train(model, SGD(model.parameters(), lr=0.1), 12)
    (event,) = watched.events()
    assert event.message.startswith("2 parameters are frozen")


def test_a_copy_and_a_network_that_only_measures_are_not_missing_from_the_optimizer(watched: Watched) -> None:
    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.teacher, self.perceptual = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.teacher(rows)
            result: torch.Tensor = self.perceptual(self.net(rows)) - target
            return result

    model = Student()
    model.perceptual.eval()
    train(model, SGD(model.net.parameters(), lr=0.1), 12)
    assert watched.events() == []


@pytest.mark.parametrize("grad", [True, False])
def test_the_shape_of_batches_is_that_of_the_passes_that_train(watched: Watched, grad: bool) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(120):
        for _ in range(2 if step > 40 else 0):  # it acts
            with torch.set_grad_enabled(grad):
                model(torch.randn(1, 4))
        train(model, optimizer, 1)
    assert watched.events() == []
    assert watched.facts()["batch"] == "float32[8, 4]"


def test_sequences_of_any_length_are_no_changes(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(120):
        train(model, optimizer, 1, rows=[8, 12, 16, 16, 12, 12, 20, 20, 8, 8, 16, 16][step // 10])
    assert watched.events() == []


def test_a_missing_call_of_train_and_a_batch_of_two_rows_are_reported(watched: Watched) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 25, rows=2)
    model.eval()
    train(model, optimizer, 30, rows=2)
    assert [(event.kind, event.step) for event in watched.events()] == [("model_lint", 10), ("evaluation_mode", 30)]


def test_the_model_of_a_training_that_ended_may_be_in_evaluation_mode(watched: Watched) -> None:
    first, second = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)) for _ in range(2))
    optimizer = SGD(first.parameters(), lr=0.1)
    train(first, optimizer, 26)
    first.eval()
    train(second, SGD(second.parameters(), lr=0.1), 34)
    assert [event.kind for event in watched.events() if event.kind == "evaluation_mode"] == []
    train(first, optimizer, 30)
    assert [event.kind for event in watched.events() if event.kind == "evaluation_mode"] == ["evaluation_mode"]


def test_facts_have_the_autocast_and_the_scaler_that_were_used(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    idle, scaler = torch.amp.GradScaler("cpu", init_scale=7.0), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(12):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    facts = watched.facts()
    assert facts["autocast"] == "cpu bfloat16"
    assert facts["loss_scaling.initial_scale"] == "1024.0"
    assert idle.is_enabled()


@pytest.mark.slow
def test_an_optimizer_for_every_step_is_not_reported_forever(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    for number in range(60):
        train(model, SGD(model.parameters(), lr=0.1 + number), 1)
    assert len(watched.facts()) < 400


def test_optimizers_of_many_trainings_of_the_same_kind_are_no_change(watched: Watched) -> None:
    for _ in range(12):
        model = nn.Linear(4, 1)
        train(model, SGD(model.parameters(), lr=0.1), 30)
    assert [event.message for event in watched.events() if event.kind == "configuration_changed"] == []


def test_nothing_of_the_training_is_kept_alive(watched: Watched) -> None:
    import gc
    import weakref

    model = nn.Linear(4, 1)
    optimizer: Any = SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 12)
    references = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_losses_with_and_without_it_are_the_same_bits(tmp_path: Path) -> None:
    def losses() -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = AdamW(model.parameters(), lr=0.01)
        result = []
        for _ in range(30):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            result.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return result

    bare = losses()
    training = Watched(tmp_path)
    watched = losses()
    training.remove()
    assert bare == watched


def test_models_that_read_different_batches_in_turn_change_nothing_on_the_way(watched: Watched) -> None:
    linear, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    first, second = torch.optim.SGD(linear.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(30):
        train(linear, first, 1, rows=8)
        train(other, second, 1, rows=32)
    assert not [event for event in watched.events() if event.kind == "configuration_changed"]


def test_facts_have_the_norm_and_the_value_at_which_gradients_are_clipped(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(60):
        model(torch.randn(8, 4)).square().mean().backward()
        clip_grad_norm_(model.parameters(), max_norm=0.5 if step < 25 else 0.25)
        torch.nn.utils.clip_grad_value_(model.parameters(), 2)
        optimizer.step()
        optimizer.zero_grad()
    facts = watched.facts()
    assert (facts["clipping.max_norm"], facts["clipping.clip_value"]) == ("0.5", "2.0")
    (event,) = watched.events()
    assert event.message == "The gradient clipping norm changed from 0.5 to 0.25, seen at step 30."


def test_each_half_of_a_gan_has_its_own_limit_and_a_norm_that_is_only_measured_has_none(watched: Watched) -> None:
    linear, other = nn.Linear(4, 4), nn.Linear(4, 1)
    first, second = SGD(linear.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    for _ in range(30):
        for model, optimizer, limit in ((linear, first, 1.0), (other, second, 10.0)):
            model(torch.randn(8, 4)).square().mean().backward()
            clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()
    facts = watched.facts()
    assert (facts["clipping.max_norm"], facts["optimizer_1.clipping.max_norm"]) == ("1.0", "10.0")
    assert watched.events() == []


def test_a_norm_that_is_only_measured_is_no_limit(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        model(torch.randn(8, 4)).square().mean().backward()
        clip_grad_norm_(model.parameters(), math.inf)
        optimizer.step()
    assert not [key for key in watched.facts() if "clipping" in key]


def test_facts_have_the_reason_why_operations_are_not_counted(watched: Watched) -> None:
    model = nn.DataParallel(nn.Linear(4, 1))
    train(model, SGD(model.parameters(), lr=0.1), 20)
    assert watched.facts()["flops.reason"] == "its batch is split over devices"


@torch.library.custom_op("tests_of_facts::twice", mutates_args=())
def twice(values: torch.Tensor) -> torch.Tensor:
    return values * 2


twice.register_autograd(lambda _, gradient: gradient * 2)


class Doubling(nn.Linear):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = twice(super().forward(values))
        return doubled


def test_kernels_without_a_formula_are_named(watched: Watched) -> None:
    model = Doubling(4, 1)
    train(model, SGD(model.parameters(), lr=0.1), 20)
    facts = watched.facts()
    assert facts["flops.unknown"] == "tests_of_facts.twice"
    assert "flops.reason" not in facts


def test_a_model_hidden_by_gc_freeze_is_reported_once_with_advice(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    gc.freeze()
    try:
        train(model, optimizer, 40)
    finally:
        gc.unfreeze()
    (event,) = watched.events()
    assert (event.kind, event.severity, event.step) == ("not_measured", Severity.INFO, 10)
    assert "the model that owns 2 of 2 trained parameters was not found" in event.message
    (result,) = watched.said
    assert result == f"{event.message} Call `gc.freeze()` after the first step of the training."


@pytest.mark.slow
def test_what_is_frozen_after_the_first_step_is_seen(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 1)
    gc.freeze()
    try:
        train(model, optimizer, 20)
    finally:
        gc.unfreeze()
    assert watched.events() == [] == watched.said
    assert watched.facts()["model"] == "Linear"
