"""Trainings side by side make one step an iteration: the halves of a GAN, the parts of an agent."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from mlflow import MlflowClient
from scenarios.delivering import end, watch
from scenarios.flown_history import recorded
from scenarios.flying import QUICK, Flown, flying
from scenarios.watching import tiny_model
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from mlflow_stability import Options, load_run
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.panel import replay
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Source

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("blank_pictures")]

SMALL, LARGE = "loss@track_critic", "loss"
"""The critic has the smaller model, and a name of its own."""


class Critic(nn.Linear):
    pass


class Generator(nn.Linear):
    pass


class Game:
    """A critic and a generator that train against each other."""

    def __init__(self, rate: float = 0.01) -> None:
        torch.manual_seed(0)
        self.generator, self.critic = Generator(4, 8), Critic(8, 1)
        self.of_generator = Adam(self.generator.parameters(), lr=rate)
        self.of_critic = Adam(self.critic.parameters(), lr=rate)
        self.noise = torch.Generator().manual_seed(3)

    def state(self) -> list[Tensor]:
        """The weights of both, as they are."""
        return [
            parameter.detach().clone()
            for generator in (self.generator, self.critic)
            for parameter in generator.parameters()
        ]

    def judge(self, times: float = 1.0) -> None:
        """One update of the critic."""
        real = torch.randn(8, 8, generator=self.noise) + 1
        made = self.generator(torch.randn(8, 4, generator=self.noise)).detach()
        loss = torch.sigmoid(self.critic(made)).mean() - torch.sigmoid(self.critic(real)).mean()
        _step(self.of_critic, loss * times)

    def make(self, times: float = 1.0) -> None:
        """One update of the generator."""
        made = self.generator(torch.randn(8, 4, generator=self.noise))
        _step(self.of_generator, -torch.sigmoid(self.critic(made)).mean() * times)

    def play(self, iterations: int, critic_steps: int = 1) -> None:
        for _ in range(iterations):
            for _ in range(critic_steps):
                self.judge()
            self.make()


def _step(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def readings(flown: Flown) -> list[StepReading]:
    return [record for record in flown.records if isinstance(record, StepReading)]


def steps_of(flown: Flown, name: str) -> list[int]:
    """At which steps a signal was recorded."""
    return [reading.step for reading in readings(flown) if name in map(str, reading.signals)]


def is_recorded_once_a_step(flown: Flown) -> bool:
    """Whether no signal has two values at one step."""
    result = [(reading.attempt, reading.step, signal) for reading in readings(flown) for signal in reading.signals]
    return len(result) == len(set(result))


def test_a_thousand_iterations_of_a_gan_are_a_thousand_steps(tmp_path: Path) -> None:
    game = Game()
    with flying(tmp_path) as flown:
        game.play(1000)
        assert flown.session.step == 1000
    everything = list(range(1, 1001))
    assert steps_of(flown, SMALL) == everything
    assert steps_of(flown, LARGE) == everything
    assert is_recorded_once_a_step(flown)
    diagnosis = diagnosis_of(recorded(flown))
    assert diagnosis.steps == (1, 1000)
    assert steps_of(flown, "loss_ema") == steps_of(flown, "loss_ema@track_critic") == everything[9::10]
    assert [repr(item) for item in replay(flown.records)] == [
        repr(event) for event in flown.events() if event.source is not Source.REPORTED
    ]


def test_the_steps_of_a_critic_count_that_steps_five_times_for_once_of_its_generator(tmp_path: Path) -> None:
    game = Game()
    with flying(tmp_path) as flown:
        game.play(20, critic_steps=5)
    assert steps_of(flown, SMALL) == list(range(1, 101))
    assert steps_of(flown, LARGE) == list(range(5, 101, 5))
    assert is_recorded_once_a_step(flown)


class Agent:
    """As soft actor-critic has it: three optimizers, one of which steps only every other time."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.actor, self.critic, self.entropy = nn.Linear(4, 2), nn.Linear(6, 16), nn.Parameter(torch.zeros(1))
        self.of_actor = Adam(self.actor.parameters(), lr=0.01)
        self.of_critic = Adam(self.critic.parameters(), lr=0.01)
        self.of_entropy = Adam([self.entropy], lr=0.01)

    def learn(self, updates: int) -> None:
        for update in range(updates):
            seen = torch.randn(8, 4)
            action = self.actor(seen)
            _step(self.of_entropy, (self.entropy * action.detach().mean()).sum())
            _step(self.of_critic, self.critic(torch.cat([seen, action.detach()], 1)).square().mean())
            if update % 2:
                _step(self.of_actor, -self.critic(torch.cat([seen, self.actor(seen)], 1)).mean())


def test_the_three_optimizers_of_an_agent_share_its_steps(tmp_path: Path) -> None:
    agent = Agent()
    with flying(tmp_path) as flown:
        agent.learn(40)
    assert steps_of(flown, "loss") == steps_of(flown, "loss@track_of_entropy") == list(range(1, 41))
    assert steps_of(flown, "loss@track_actor") == list(range(2, 41, 2))
    assert is_recorded_once_a_step(flown)


def test_the_steps_of_a_training_that_follows_another_come_after_its_own(tmp_path: Path) -> None:
    kept: list[object] = []
    with flying(tmp_path) as flown:
        for fold in range(3):
            model = tiny_model(fold)
            optimizer = SGD(model.parameters(), lr=0.01)
            kept += [model, optimizer]
            for _ in range(5):
                _step(optimizer, model(torch.randn(8, 4)).square().mean())
    assert [reading.step for reading in readings(flown)] == list(range(1, 16))


@pytest.mark.scenario
def test_the_run_has_a_row_for_each_iteration_and_both_halves_at_the_same_steps(
    store: MlflowClient, sqlite_uri: str
) -> None:
    game = Game()
    watch(log_every_n_steps=20, layers_every_n_steps=50)
    game.play(200)
    end()
    (run,) = store.search_runs(["0"])
    table = load_run(run.info.run_id, sqlite_uri)
    assert table["step"].tolist() == list(range(1, 201))
    assert table[[SMALL, LARGE, "grad_norm", "grad_norm@track_critic"]].notna().all().all()
    logged = [
        sorted(point.step for point in store.get_metric_history(run.info.run_id, key))
        for key in (metric_key(Signal("loss")), metric_key(Signal("loss", "track_critic")))
    ]
    assert logged[0] == logged[1]
    reader, planned = RunReader(run.info.run_id, sqlite_uri), {1, *range(20, 201, 20)}
    with_events = {
        record.step for _, record in reader.event_lines() if isinstance(record, Finding)
    }  # a busy machine has slow steps
    assert planned <= set(logged[0]) <= planned | with_events
    read = list(reader.record().readings())
    assert len(read) == 400
    assert {len({str(signal) for signal in first.signals} & {SMALL, LARGE}) for first in read} == {1}


def _pieces(game: Game, iterations: int, at: int, half: Callable[[Game, float], None], times: float) -> None:
    """Iterations of which one half of one is broken."""
    for iteration in range(1, iterations + 1):
        broken = times if iteration == at else 1.0
        game.judge(broken if half is Game.judge else 1.0)
        game.make(broken if half is Game.make else 1.0)


@pytest.mark.parametrize(("half", "place"), [(Game.judge, "@track_critic"), (Game.make, "")])
def test_a_broken_half_is_skipped_and_the_other_one_taken(
    tmp_path: Path, half: Callable[[Game, float], None], place: str
) -> None:
    game = Game()
    with flying(tmp_path, guard=True, options=Options(capture_batch=True)) as flown:
        _pieces(game, 40, 30, half, math.nan)
    assert all(tensor.isfinite().all() for tensor in game.state())
    assert steps_of(flown, SMALL) == steps_of(flown, LARGE) == list(range(1, 41))
    broken = [reading for reading in readings(flown) if any(map(math.isnan, reading.values))]
    assert [point.step for point in broken] == [30]
    assert f"loss{place}" in map(str, broken[0].signals)
    assert [event.step for event in flown.events("step_skipped")] == [30]
    (batch,) = flown.events("broken_batch")
    assert batch.step == 30
    assert ("8x8" if half is Game.judge else "8x4") in batch.message
    assert [repr(item) for item in replay(flown.records)] == [
        repr(event) for event in flown.events() if event.source is not Source.REPORTED
    ]


def test_a_gan_goes_back_to_a_whole_step_bit_by_bit_and_begins_a_step_after_it(tmp_path: Path) -> None:
    game = Game()
    after: dict[int, list[Tensor]] = {}
    with flying(tmp_path, rollback=QUICK) as flown:
        for iteration in range(1, 101):
            game.judge()
            game.make()
            after[iteration] = game.state()
        game.judge()
        target = flown.session.good_steps[-1]
        assert flown.session.rollback()  # in the middle of step 101
        assert all(map(torch.equal, game.state(), after[target]))
        game.make()
        game.play(5)
    assert 1 < target < 101
    again = [(reading.step, str(reading.signals[0])) for reading in readings(flown) if reading.attempt == 1]
    assert again[:3] == [(102, LARGE), (102, SMALL), (103, LARGE)]
    assert again[-1][0] == 107
    assert is_recorded_once_a_step(flown)
