"""Several trainings side by side: each is named by what it trains, and the largest model has the plain names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
import torch
from scenarios.flying import flying
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from mlflow_stability.vocabulary.measured.signal import StepReading

pytestmark = pytest.mark.scenario


def losses_of(folder: Path, body: Callable[[], object]) -> list[tuple[str, int]]:
    """Under which names losses were recorded, in the order of their first step, and how many of each."""
    with flying(folder) as flown:
        body()
    readings = [record for record in flown.records if isinstance(record, StepReading)]
    names = [str(signal) for reading in readings for signal in reading.signals if signal.quantity == "loss"]
    return list(Counter(names).items())


def step(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = Adam(self.parameters())


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
        self.optimizer = Adam(self.parameters())


class Agent:
    """Built as the off-policy agents of common libraries are."""

    def __init__(self) -> None:
        self.policy = nn.ModuleDict({"actor": Actor(), "critic": Critic()})
        self.actor, self.critic = self.policy["actor"], self.policy["critic"]
        self.log_ent_coef = torch.zeros(1, requires_grad=True)
        self.ent_coef_optimizer = Adam([self.log_ent_coef])

    def learn(self, updates: int) -> None:
        for _ in range(updates):
            seen = torch.randn(8, 4)
            action = self.actor.net(seen)
            step(self.ent_coef_optimizer, (self.log_ent_coef * 0.3).mean())
            step(self.critic.optimizer, (self.value(seen, action.detach()) - seen[:, :1]).pow(2).mean())
            step(self.actor.optimizer, -self.value(seen, action).mean())

    def value(self, seen: Tensor, action: Tensor) -> Tensor:
        return self.critic.value(torch.cat([seen, action], 1))  # type: ignore[no-any-return]


def test_the_parts_of_an_agent_are_named_and_its_largest_is_in_front(tmp_path: Path) -> None:
    assert losses_of(tmp_path, lambda: Agent().learn(4)) == [
        ("loss@track_ent_coef", 4),
        ("loss", 4),
        ("loss@track_actor", 4),
    ]


class Generator(nn.Linear):
    pass


class Discriminator(nn.Linear):
    pass


def gan(iterations: int, generator: nn.Module, discriminator: nn.Module) -> None:
    makes, judges = Adam(generator.parameters()), Adam(discriminator.parameters())
    for _ in range(iterations):
        fake = generator(torch.randn(4, 8))
        step(judges, discriminator(fake.detach()).mean())
        step(makes, -discriminator(fake).mean())


def test_the_halves_of_a_gan_are_named_by_their_classes(tmp_path: Path) -> None:
    losses = losses_of(tmp_path, lambda: gan(5, Generator(8, 8), Discriminator(8, 1)))
    assert losses == [("loss@track_discriminator", 5), ("loss", 5)]


def test_the_smaller_half_has_its_name_also_where_it_steps_second(tmp_path: Path) -> None:
    losses = losses_of(tmp_path, lambda: gan(5, Generator(8, 2), Discriminator(2, 64)))
    assert losses == [("loss", 5), ("loss@track_generator", 5)]


def test_halves_that_nothing_names_have_numbers(tmp_path: Path) -> None:
    losses = losses_of(tmp_path, lambda: gan(5, nn.Linear(8, 2), nn.Linear(2, 64)))
    assert losses == [("loss", 5), ("loss@track_1", 5)]


def test_optimizers_that_share_a_model_are_one_track_with_the_plain_names(tmp_path: Path) -> None:
    def both() -> None:
        model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 64))
        optimizers = Adam(model[0].parameters()), Adam(model[1].parameters())
        for _ in range(3):
            model(torch.randn(4, 4)).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    assert losses_of(tmp_path, both) == [("loss", 3)]


def test_a_larger_training_that_is_over_takes_no_names_away(tmp_path: Path) -> None:
    large = nn.Linear(64, 64)
    over = Adam(large.parameters())
    step(over, large(torch.randn(2, 64)).mean())
    large.zero_grad()

    def small() -> None:
        model = nn.Linear(2, 2)
        optimizer = Adam(model.parameters())
        for _ in range(3):
            step(optimizer, model(torch.randn(2, 2)).mean())

    assert losses_of(tmp_path, small) == [("loss", 3)]
    del over


def ended(model: nn.Module, steps: int = 2) -> tuple[nn.Module, Optimizer]:
    """A training that is over and stays in memory, with nothing in it that tells that it has stepped."""
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_trainings_that_other_code_has_in_memory_change_no_name(tmp_path: Path) -> None:
    models = [Generator(64, 64) for _ in range(20)]
    held: list[object] = [Adam(nn.Linear(2, 2).parameters()) for _ in range(20)]
    held += [Adam(model.parameters()) for model in models]
    held += models
    held += [ended(Generator(8, 512)) for _ in range(3)]
    losses = losses_of(tmp_path, lambda: gan(5, Generator(8, 8), Discriminator(8, 1)))
    assert losses == [("loss@track_discriminator", 5), ("loss", 5)]
    assert len(held) == 63


class Student(nn.Linear):
    pass


def test_a_larger_trial_that_stays_in_memory_takes_no_names_away(tmp_path: Path) -> None:
    trials = []

    def study() -> None:
        for kind, width in ((Generator, 64), (Student, 4)):
            with mlflow.start_run():
                trials.append(ended(kind(8, width), steps=3))

    assert losses_of(tmp_path, study) == [("loss", 3)]
    assert len(trials) == 2


@pytest.mark.slow
def test_an_optimizer_for_each_of_many_layers_leaves_the_plain_names_with_the_first(tmp_path: Path) -> None:
    def training() -> None:
        model = nn.Sequential(nn.Linear(2, 2), *(nn.Linear(2, 2) for _ in range(8)), nn.Linear(2, 4))
        optimizers = [SGD(item.parameters(), lr=0.1) for item in model]
        for _ in range(2):
            for optimizer in optimizers:
                step(optimizer, model(torch.randn(2, 2)).mean())
                model.zero_grad()

    assert losses_of(tmp_path, training)[0] == ("loss", 2)


def test_the_whole_after_its_layers_one_by_one_has_a_track_of_its_own(tmp_path: Path) -> None:
    def layer_by_layer() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for part in (*model, model, model):  # a second optimizer of the whole goes on with its track
            optimizer = Adam(part.parameters())
            for _ in range(3):
                step(optimizer, part(torch.randn(8, 4)).pow(2).mean())

    (_, first), (_, second), (_, whole) = losses_of(tmp_path, layer_by_layer)
    assert (first, second, whole) == (3, 3, 6)
