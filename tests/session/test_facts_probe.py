"""Facts and changes of real trainings, from their gates into a journal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler

from mlflow_stability.journal.follower import read_journal
from mlflow_stability.journal.writer import NAME as JOURNAL
from mlflow_stability.probes.cycle_meter import CycleMeter
from mlflow_stability.probes.survey import Probes, Survey
from mlflow_stability.probes.torch_watch import TorchWatch
from mlflow_stability.probes.training_pace import TrainingPace
from mlflow_stability.session.facts_probe import FactsProbe
from mlflow_stability.session.guard import PartGuard
from mlflow_stability.session.recording import Recording
from mlflow_stability.vocabulary import Event, Fact, Opening


class Watched:
    """A training with a recording and no other probe."""

    def __init__(self, folder: Path) -> None:
        guard = PartGuard(strict=True, on_failure=lambda part, error: None)
        opening = Opening("here", os.getpid(), psutil.Process().create_time(), "here", time.time())
        self.recording = Recording(folder / "journal", opening, (), guard, lambda event: None)
        probe = FactsProbe(self.recording)
        pace = TrainingPace(guard, lambda: 0.0, None, [probe])
        survey = Survey(guard, Probes(by_step=[probe]), pace, 1)
        self._meter = CycleMeter(
            guard,
            lambda optimizer: self.recording,
            lambda recording, reading: recording.record(reading),
            lambda recording: survey,
        )
        self._watch = TorchWatch(guard, self._meter)
        self._watch.install()

    def remove(self) -> None:
        self._watch.remove()
        self._meter.close()

    def facts(self) -> dict[str, str]:
        records = [each for each in read_journal(self.recording.folder / JOURNAL) if isinstance(each, Fact)]
        assert len({each.key for each in records}) == len(records)
        return {each.key: each.value for each in records}

    def events(self) -> list[Event]:
        return [each for each in read_journal(self.recording.folder / JOURNAL) if isinstance(each, Event)]


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
    messages = {each.message.split(" went")[0]: each for each in watched.events()}
    assert set(messages) == {
        "weight_decay of AdamW",
        "The shape of the batches",
        "The number of micro-batches in a step",
    }
    assert all(each.live and each.kind == "configuration_changed" for each in messages.values())
    assert messages["weight_decay of AdamW"].step == 30


def test_both_halves_of_a_gan_are_told_though_they_take_turns(watched: Watched) -> None:
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = SGD(maker.parameters(), lr=0.1), AdamW(judge.parameters(), lr=0.2)
    for _ in range(20):
        train(maker, optimizers[0], 1)
        train(judge, optimizers[1], 1)
    facts = watched.facts()
    assert (facts["optimizer"], facts["optimizer_1"], facts["optimizer_1.learning_rate"]) == ("SGD", "AdamW", "0.2")
    assert (facts["model"], facts["model_1"], facts["model_1.parameters_total"]) == ("Linear", "Linear", "5")
    assert watched.events() == []


def test_a_parameter_that_no_optimizer_has_is_told_at_the_tenth_step(watched: Watched) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    train(model, SGD(model[1].parameters(), lr=0.1), 12)
    (event,) = watched.events()
    assert (event.kind, event.step, event.evidence["parameters"]) == ("model_lint", 10, 2.0)


def test_autocast_and_the_scaler_are_told_as_they_were_used(watched: Watched) -> None:
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


def test_an_optimizer_for_every_step_does_not_tell_for_ever(watched: Watched) -> None:
    model = nn.Linear(4, 1)
    for number in range(60):
        train(model, SGD(model.parameters(), lr=0.1 + number), 1)
    assert len(watched.facts()) < 400


def test_nothing_of_the_training_is_kept_alive(watched: Watched) -> None:
    import gc
    import weakref

    model = nn.Linear(4, 1)
    optimizer: Any = SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 12)
    references = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [each() for each in references] == [None, None]


def test_losses_with_and_without_it_are_the_same_bits(tmp_path: Path) -> None:
    def losses() -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = AdamW(model.parameters(), lr=0.01)
        found = []
        for _ in range(30):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            found.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return found

    bare = losses()
    training = Watched(tmp_path)
    watched = losses()
    training.remove()
    assert bare == watched


def test_models_that_read_different_batches_in_turn_change_nothing_on_the_way(watched: Watched) -> None:
    one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(30):
        train(one, first, 1, rows=8)
        train(other, second, 1, rows=32)
    assert not [each for each in watched.events() if each.kind == "configuration_changed"]
