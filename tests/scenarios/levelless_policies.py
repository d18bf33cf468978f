"""Small trainings of policies as public tutorials write them, whose loss has no level, and what they share."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal
from torch.nn import functional


def mlp(inputs: int, outputs: int, width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def state_of(*modules: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for module in modules for tensor in module.state_dict().values()]


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def average(target: nn.Module, online: nn.Module, share: float) -> None:
    for mean, now in zip(target.parameters(), online.parameters(), strict=True):
        mean.mul_(1 - share).add_(now, alpha=share)


def dqn(steps: int) -> object:
    """CleanRL's loop: hard copies every 50 updates."""
    torch.manual_seed(1)
    env = gymnasium.make("CartPole-v1")
    online, target = mlp(4, 2), mlp(4, 2)
    optimizer = torch.optim.Adam(online.parameters(), lr=2.5e-4)
    target.load_state_dict(online.state_dict())
    replay: list[tuple[Tensor, int, float, Tensor, float]] = []
    state, _ = env.reset(seed=1)
    for updates in range(-30, steps):
        for _ in range(4):
            observed = torch.tensor(state)
            greedy = torch.rand(()) > 0.3
            action = int(online(observed).argmax()) if greedy else int(torch.randint(2, ()))
            state, reward, over, cut, _ = env.step(action)
            replay.append((observed, action, float(reward), torch.tensor(state), float(over)))
            if over or cut:
                state, _ = env.reset()
        if updates < 0:
            continue
        drawn = [replay[int(at)] for at in torch.randint(len(replay), (64,))]
        states, followed = torch.stack([row[0] for row in drawn]), torch.stack([row[3] for row in drawn])
        actions = torch.tensor([row[1] for row in drawn])
        rewards, overs = torch.tensor([row[2] for row in drawn]), torch.tensor([row[4] for row in drawn])
        with torch.no_grad():
            best = target(followed).max(1).values
            wanted = rewards + 0.99 * best * (1 - overs)
        step(optimizer, functional.mse_loss(online(states).gather(1, actions[:, None]).squeeze(1), wanted))
        if updates % 50 == 0:
            target.load_state_dict(online.state_dict())
    return state_of(online)


def parallel_q_learning(steps: int) -> object:
    """CleanRL's PQN: no copy of the model, and rounds of sixteen updates on what the model chose before them."""
    torch.manual_seed(23)
    environments = gymnasium.make_vec("CartPole-v1", num_envs=4)
    model = mlp(4, 2)
    optimizer = torch.optim.RAdam(model.parameters(), lr=2.5e-4)
    states, _ = environments.reset(seed=1)
    for _ in range(0, steps, 16):
        chosen: list[tuple[Tensor, Tensor, Tensor]] = []
        for _ in range(32):
            observed = torch.tensor(states)
            with torch.no_grad():
                actions = torch.where(torch.rand(4) < 0.3, torch.randint(2, (4,)), model(observed).argmax(1))
            states, rewards, overs, _, _ = environments.step(actions.numpy())
            with torch.no_grad():
                best = model(torch.tensor(states)).max(1).values
            targets = torch.tensor(rewards, dtype=torch.float32) + 0.99 * best * ~torch.tensor(overs)
            chosen.append((observed, actions, targets))
        observed, actions, targets = (torch.cat(pair) for pair in zip(*chosen, strict=True))
        for drawn in torch.cat([torch.randperm(128) for _ in range(4)]).split(32):
            values = model(observed[drawn]).gather(1, actions[drawn, None]).squeeze(1)
            step(optimizer, functional.mse_loss(values, targets[drawn]))
    environments.close()
    return state_of(model)


class Actor(nn.Module):
    """A policy and a value estimate."""

    def __init__(self, actions: int = 2) -> None:
        super().__init__()
        self.actor, self.critic = mlp(4, actions), mlp(4, 1)

    def value(self, states: Tensor) -> Tensor:
        return self.critic(states).squeeze(-1)


def ppo(steps: int) -> object:
    """CleanRL's loop: roll out without gradients, then 4 epochs of minibatches."""
    torch.manual_seed(2)
    env, agent = gymnasium.make("CartPole-v1"), Actor()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    state, _ = env.reset(seed=2)
    done = 0
    while done < steps:
        rows = []
        for _ in range(64):
            observed = torch.tensor(state)
            with torch.no_grad():
                chances = Categorical(logits=agent.actor(observed))
                action = chances.sample()
                rows.append([observed, action, chances.log_prob(action), agent.value(observed)])
            state, reward, over, cut, _ = env.step(int(action))
            rows[-1] += [torch.tensor(float(reward)), torch.tensor(float(over or cut))]
            if over or cut:
                state, _ = env.reset()
        observations, actions, old, values, rewards, overs = (torch.stack(pair) for pair in zip(*rows, strict=True))
        returns, kept = torch.zeros(64), torch.zeros(())
        for at in reversed(range(64)):
            kept = rewards[at] + 0.99 * kept * (1 - overs[at])
            returns[at] = kept
        for _ in range(4):
            for chosen in torch.randperm(64).split(16):
                advantage = returns[chosen] - values[chosen]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                now = Categorical(logits=agent.actor(observations[chosen]))
                ratio = (now.log_prob(actions[chosen]) - old[chosen]).exp()
                policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
                error = 0.5 * (agent.value(observations[chosen]) - returns[chosen]).pow(2).mean()
                optimizer.zero_grad()
                (policy - 0.01 * now.entropy().mean() + 0.5 * error).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
                done += 1
    return state_of(agent)


def actor_critic(steps: int, rate: float = 3e-2) -> object:
    """The loop of pytorch/examples: one step for each episode; without a critic this is REINFORCE."""
    torch.manual_seed(3)
    env, agent = gymnasium.make("CartPole-v1"), Actor()
    optimizer = torch.optim.Adam(agent.parameters(), lr=rate)
    for episode in range(steps):
        state, _ = env.reset(seed=episode)
        chances, values, rewards = [], [], []
        for _ in range(25):
            observed = torch.tensor(state)
            choice = Categorical(agent.actor(observed).softmax(-1))
            action = choice.sample()
            chances.append(choice.log_prob(action))
            values.append(agent.value(observed))
            state, reward, over, _, _ = env.step(action.item())
            rewards.append(float(reward))
            if over:
                break
        kept, returns = 0.0, []
        for reward in reversed(rewards):
            kept = reward + 0.99 * kept
            returns.insert(0, kept)
        wanted = torch.tensor(returns)
        wanted = (wanted - wanted.mean()) / (wanted.std() + 1e-6)
        advantage = wanted - torch.stack(values).detach()
        errors = functional.smooth_l1_loss(torch.stack(values), wanted, reduction="sum")
        step(optimizer, -(torch.stack(chances) * advantage).sum() + errors)
    return state_of(agent)


def reinforce_continuous(steps: int) -> object:
    """A Gaussian policy on a bandit, the actions are stored and scored later."""
    torch.manual_seed(4)
    policy = mlp(3, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(steps):
        states = torch.randn(64, 3)
        choice = Independent(Normal(policy(states), 0.3), 1)
        actions = choice.sample()
        rewards = -(actions - states[:, :2]).pow(2).sum(1)
        step(optimizer, -(choice.log_prob(actions) * (rewards - rewards.mean())).mean())
    return state_of(policy)


def reinforce_one_by_one(steps: int) -> object:
    """NumPy draws the actions of an episode; each is then trained on alone, with its discounted return."""
    torch.manual_seed(5)
    draw = np.random.default_rng(5)
    policy = nn.Sequential(*mlp(4, 2), nn.Softmax(1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    done = 0
    while done < steps:
        states = [torch.randn(1, 4) for _ in range(int(draw.integers(8, 25)))]
        actions = [int(draw.choice(2, p=policy(state).detach().numpy().ravel())) for state in states]
        for later, (state, action) in enumerate(zip(states, actions, strict=True)):
            worth = (len(states) - later) * 0.99**later
            step(optimizer, -worth * policy(state).flatten()[action].log())
        done += len(states)
    return state_of(policy)


def sac(steps: int) -> object:
    """Two critics with averaged targets, an actor and a temperature: three optimizers, targets called by parts."""
    torch.manual_seed(5)

    class Critics(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = mlp(4, 1), mlp(4, 1)

        def lower(self, states: Tensor, actions: Tensor) -> Tensor:
            inputs = torch.cat([states, actions], 1)
            return torch.min(self.first(inputs), self.second(inputs))

    actor, critics = mlp(3, 2), Critics()
    target = copy.deepcopy(critics)
    log_alpha = torch.zeros(1, requires_grad=True)
    of_critics = torch.optim.Adam(critics.parameters(), lr=1e-3)
    of_actor, of_alpha = torch.optim.Adam(actor.parameters(), lr=1e-3), torch.optim.Adam([log_alpha], lr=1e-3)

    def act(states: Tensor) -> tuple[Tensor, Tensor]:
        mean, width = actor(states).chunk(2, 1)
        normal = Normal(mean, width.clamp(-5, 2).exp())
        drawn = normal.rsample()
        return drawn.tanh(), normal.log_prob(drawn) - (1 - drawn.tanh().pow(2) + 1e-6).log()

    for _ in range(steps):
        states, actions = torch.randn(64, 3), torch.rand(64, 1) * 2 - 1
        rewards, following = -(states[:, :1] - actions).pow(2), states + 0.1 * torch.randn(64, 3)
        with torch.no_grad():
            chosen, chance = act(following)
            wanted = rewards + 0.9 * (target.lower(following, chosen) - log_alpha.exp() * chance)
        inputs = torch.cat([states, actions], 1)
        errors = functional.mse_loss(critics.first(inputs), wanted) + functional.mse_loss(
            critics.second(inputs), wanted
        )
        step(of_critics, errors)
        chosen, chance = act(states)
        step(of_actor, (log_alpha.exp().detach() * chance - critics.lower(states, chosen)).mean())
        step(of_alpha, (-log_alpha.exp() * (chance.detach() - 1)).mean())
        average(target, critics, 0.005)
    return state_of(actor, critics)


def td3(steps: int) -> object:
    """A deterministic actor whose updates come every second step."""
    torch.manual_seed(6)
    actor, critic = mlp(3, 1), mlp(4, 1)
    actor_target, critic_target = copy.deepcopy(actor), copy.deepcopy(critic)
    of_actor, of_critic = torch.optim.Adam(actor.parameters(), lr=1e-3), torch.optim.Adam(critic.parameters(), lr=1e-3)
    for number in range(steps):
        states, actions = torch.randn(64, 3), torch.rand(64, 1) * 2 - 1
        rewards, following = -(states[:, :1] - actions).pow(2), states + 0.1 * torch.randn(64, 3)
        with torch.no_grad():
            chosen = (actor_target(following).tanh() + 0.2 * torch.randn(64, 1)).clamp(-1, 1)
            wanted = rewards + 0.9 * critic_target(torch.cat([following, chosen], 1))
        step(of_critic, functional.mse_loss(critic(torch.cat([states, actions], 1)), wanted))
        if number % 2 == 0:
            step(of_actor, -critic(torch.cat([states, actor(states).tanh()], 1)).mean())
            average(actor_target, actor, 0.005)
            average(critic_target, critic, 0.005)
    return state_of(actor, critic)
