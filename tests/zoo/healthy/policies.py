"""Agents that learn from rewards: losses that say little about progress, several networks, data that change."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import mse_loss, smooth_l1_loss
from torch.optim import Adam
from zoo.healthy.data import dice_of, earns, learnt, mlp

WORLDS, LENGTH = 32, 32


class Track:
    """Many carts at once on a line: push left or right, and stay near the middle."""

    def __init__(self, dice: Generator, count: int = WORLDS) -> None:
        self.dice, self.count = dice, count
        self.state = self.fresh()

    def fresh(self) -> Tensor:
        return torch.rand(self.count, 2, generator=self.dice) * 2 - 1

    def push(self, force: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The reward, the state after it, and where a new round begins."""
        place, speed = self.state.unbind(1)
        speed = 0.95 * speed + 0.2 * force + 0.02 * torch.randn(self.count, generator=self.dice)
        place = place + 0.2 * speed
        reward = 1 - place.abs().clamp(max=2) - 0.1 * speed.abs().clamp(max=3)
        over = (place.abs() > 2) | (torch.rand(self.count, generator=self.dice) < 0.03)
        after = torch.stack([place, speed], 1)
        self.state = torch.where(over[:, None], self.fresh(), after)
        return reward, after, over


def ppo(seed: int) -> None:
    """Clipped policy and value losses together, four epochs over each rollout, and rewards scaled as is usual."""
    dice = dice_of(seed)
    world, actor, critic = Track(dice), nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)), mlp(32, 2, 2, 1)
    optimizer = Adam([*actor.parameters(), *critic.parameters()], lr=2e-3)
    earned = []
    for _ in range(60):
        states, actions, rewards, overs = [], [], [], []
        with torch.no_grad():
            for _ in range(LENGTH):
                chosen = torch.multinomial(actor(world.state).softmax(1), 1, generator=dice)[:, 0]
                states.append(world.state)
                actions.append(chosen)
                reward, _, over = world.push(2.0 * chosen - 1)
                rewards.append(reward / 10)
                overs.append(over.float())
            earned.append(earns(10 * torch.stack(rewards).mean().item()))
            given, did = torch.stack(states), torch.stack(actions)
            worth = torch.cat([critic(given)[..., 0], critic(world.state)[None, :, 0]])
            gain, gains = torch.zeros(WORLDS), []
            for at in reversed(range(LENGTH)):
                going_on = 1 - overs[at]
                gain = rewards[at] + 0.97 * going_on * worth[at + 1] - worth[at] + 0.92 * going_on * gain
                gains.append(gain)
            gained = torch.stack(gains[::-1])
            wanted = (gained + worth[:-1]).flatten()
            before = Categorical(logits=actor(given)).log_prob(did).flatten()
            gained = ((gained - gained.mean()) / (gained.std() + 1e-8)).flatten()
        given, did = given.flatten(0, 1), did.flatten()
        for _ in range(4):
            for rows in torch.randperm(len(given), generator=dice).split(256):
                policy = Categorical(logits=actor(given[rows]))
                ratio = (policy.log_prob(did[rows]) - before[rows]).exp()
                surrogate = torch.min(ratio * gained[rows], ratio.clamp(0.8, 1.2) * gained[rows]).mean()
                value = mse_loss(critic(given[rows])[:, 0], wanted[rows])
                loss = -surrogate + 0.5 * value - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
                optimizer.step()
    learnt("the reward", sum(earned[-5:]) / 5 - sum(earned[:3]) / 3, least=0.05)


class Memory:
    """The last transitions."""

    def __init__(self, dice: Generator) -> None:
        self.dice, self.kept = dice, []

    def add(self, *parts: Tensor) -> None:
        self.kept.append(parts)
        self.kept = self.kept[-300:]

    def some(self, count: int) -> list[Tensor]:
        which = torch.randint(len(self.kept), (count // 8,), generator=self.dice).tolist()
        rows = torch.randint(WORLDS, (8,), generator=self.dice)
        return [torch.cat([self.kept[at][part][rows] for at in which]) for part in range(5)]


def step_of(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def soft_actor_critic(seed: int) -> None:
    """Four optimizers: two critics, the actor, and the temperature of its entropy."""
    dice = dice_of(seed)
    world, memory, actor = Track(dice), Memory(dice), mlp(32, 2, 2, 2)
    critics = [mlp(32, 2, 3, 1) for _ in "ab"]
    targets = [deepcopy(item).requires_grad_(requires_grad=False) for item in critics]
    heat = nn.Parameter(torch.tensor(-1.0))
    of_critics = [Adam(item.parameters(), lr=1e-3) for item in critics]
    of_actor, of_heat = Adam(actor.parameters(), lr=1e-3), Adam([heat], lr=1e-3)
    earned = []

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(state).chunk(2, 1)
        spread = spread.clamp(-4, 1).exp()
        raw = mean + spread * torch.randn(mean.shape, generator=dice)
        density = -((raw - mean) / spread).square() / 2 - spread.log() - 0.919 - (1 - raw.tanh().square() + 1e-6).log()
        return raw.tanh(), density[:, 0]

    for step in range(500):
        with torch.no_grad():
            before = world.state
            action, _ = act(before)
            reward, after, over = world.push(action[:, 0])
            memory.add(before, action, reward, after, over.float())
            earned.append(earns(reward.mean().item()))
        if step < 50:
            continue
        state, did, got, then, over = memory.some(64)
        with torch.no_grad():
            following, density = act(then)
            worth = torch.min(*(function(torch.cat([then, following], 1))[:, 0] for function in targets))
            wanted = got + 0.95 * (1 - over) * (worth - heat.exp() * density)
        for critic, optimizer in zip(critics, of_critics, strict=True):
            step_of(optimizer, mse_loss(critic(torch.cat([state, did], 1))[:, 0], wanted))
        action, density = act(state)
        worth = torch.min(*(function(torch.cat([state, action], 1))[:, 0] for function in critics))
        step_of(of_actor, (heat.exp().detach() * density - worth).mean())
        step_of(of_heat, -(heat.exp() * (density.detach() - 1.0)).mean())
        with torch.no_grad():
            for target, critic in zip(targets, critics, strict=True):
                for mean, item in zip(target.parameters(), critic.parameters(), strict=True):
                    mean.lerp_(item, 0.01)
    learnt("the reward", sum(earned[-50:]) / 50 - sum(earned[:50]) / 50, least=0.05)


def q_learning(seed: int) -> None:
    """A target network that follows slowly, and a short horizon."""
    dice = dice_of(seed)
    world, memory, network = Track(dice), Memory(dice), mlp(32, 2, 2, 2)
    target = deepcopy(network)
    optimizer, earned = Adam(network.parameters(), lr=1e-3), []
    for step in range(1000):
        with torch.no_grad():
            before = world.state
            guess = torch.rand(WORLDS, generator=dice) < max(0.05, 1 - step / 400)
            chosen = torch.where(guess, torch.randint(2, (WORLDS,), generator=dice), network(before).argmax(1))
            reward, after, over = world.push(2.0 * chosen - 1)
            memory.add(before, chosen, reward, after, over.float())
            earned.append(earns(reward.mean().item()))
        with torch.no_grad():
            for mean, item in zip(target.parameters(), network.parameters(), strict=True):
                mean.lerp_(item, 0.05)
        state, did, got, then, over = memory.some(64)
        with torch.no_grad():
            wanted = got + 0.8 * (1 - over) * target(then).max(1).values
        loss = smooth_l1_loss(network(state).gather(1, did[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
    learnt("the reward", sum(earned[-100:]) / 100 - sum(earned[:100]) / 100, least=0.05)


def reinforce(seed: int) -> None:
    """A policy gradient with a baseline: a loss around zero that means nothing."""
    dice = dice_of(seed)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 5))
    best = torch.randn(4, 5, generator=Generator().manual_seed(4))
    optimizer, mean, got = Adam(policy.parameters(), lr=3e-3), 0.0, []
    for _ in range(900):
        state = torch.randn(64, 4, generator=dice)
        scores = policy(state)
        chosen = torch.multinomial(scores.softmax(1), 1, generator=dice)[:, 0]
        reward = ((state @ best).gather(1, chosen[:, None])[:, 0] + torch.randn(64, generator=dice)) / 2
        loss = -(Categorical(logits=scores).log_prob(chosen) * (reward - mean)).mean()
        mean = 0.95 * mean + 0.05 * reward.mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        got.append(earns(reward.mean().item()))
    learnt("the reward", sum(got[-50:]) / 50 - sum(got[:20]) / 20, least=0.5)
