"""Learning from a replay buffer: targets are computed by a second copy of the network."""

from __future__ import annotations

import random
from collections import deque
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, AdamW
from zoo.tutorials.tutorial import Outcome
from zoo.tutorials.worlds import CartPole, PointMass

Transition = tuple[Tensor, int, float, Tensor, bool]


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(4, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def sample(memory: deque[Transition], batch_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    states, actions, rewards, next_states, dones = zip(*random.sample(memory, batch_size), strict=True)
    return (
        torch.stack(states),
        torch.tensor(actions),
        torch.tensor(rewards),
        torch.stack(next_states),
        torch.tensor(dones, dtype=torch.float32),
    )


def greedy_return(network: nn.Module, episodes: int = 10) -> float:
    world, total = CartPole(), 0.0
    for _ in range(episodes):
        state, over = world.reset(), False
        while not over:
            with torch.no_grad():
                action = int(network(state).argmax())
            state, reward, ended, cut = world.step(action)
            over = ended or cut
            total += reward
    return total / episodes


def dqn() -> Outcome:
    """DQN as in cleanrl: the target network is copied every 200 updates, the loss grows with the return."""
    world = CartPole()
    q_network, target_network = QNetwork(), QNetwork()
    optimizer = Adam(q_network.parameters(), lr=1e-3)
    target_network.load_state_dict(q_network.state_dict())
    memory: deque[Transition] = deque(maxlen=5000)
    state, best = world.reset(), 0.0
    for global_step in range(6000):
        epsilon = max(0.05, 1.0 - global_step / 3000)
        explores = random.random() < epsilon
        action = random.randrange(2) if explores else int(torch.argmax(q_network(state[None]), dim=1))
        next_state, reward, ended, cut = world.step(action)
        memory.append((state, action, reward, next_state, ended))
        state = world.reset() if ended or cut else next_state
        if global_step > 500 and global_step % 2 == 0:
            states, actions, rewards, next_states, dones = sample(memory, 64)
            with torch.no_grad():
                target_max, _ = target_network(next_states).max(dim=1)
                td_target = rewards + 0.98 * target_max * (1 - dones)
            old_val = q_network(states).gather(1, actions[:, None]).squeeze()
            loss = functional.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if global_step % 200 == 0:
            for target_param, param in zip(target_network.parameters(), q_network.parameters(), strict=True):
                target_param.data.copy_(1.0 * param.data + 0.0 * target_param.data)
        if global_step % 1000 == 999:
            best = max(best, greedy_return(q_network))
    return Outcome(best, (q_network, target_network))


def double_dqn() -> Outcome:
    """The DQN of PyTorch's tutorial with double targets: soft updates, smooth L1 loss, gradients clipped by value."""
    world = CartPole()
    policy_net = QNetwork()
    target_net = QNetwork()
    target_net.load_state_dict(policy_net.state_dict())
    optimizer = AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
    memory: deque[Transition] = deque(maxlen=10000)
    steps_done, best = 0, 0.0
    for episode in range(400):
        state, over = world.reset(), False
        while not over:
            steps_done += 1
            if random.random() < max(0.05, 0.9 - steps_done / 2000):
                action = random.randrange(2)
            else:
                with torch.no_grad():
                    action = policy_net(state[None]).max(1).indices.item()
            next_state, reward, ended, cut = world.step(action)
            over = ended or cut
            memory.append((state, action, reward, next_state, ended))
            state = next_state
            if len(memory) >= 64 and steps_done % 2 == 0:
                states, actions, rewards, next_states, dones = sample(memory, 64)
                state_action_values = policy_net(states).gather(1, actions.unsqueeze(1))
                with torch.no_grad():
                    chosen = policy_net(next_states).argmax(1, keepdim=True)
                    next_values = target_net(next_states).gather(1, chosen).squeeze(1)
                expected = next_values * 0.99 * (1 - dones) + rewards
                loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
                optimizer.step()
                target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
                for key in policy_state:
                    target_state[key] = policy_state[key] * 0.01 + target_state[key] * 0.99
                target_net.load_state_dict(target_state)
        if episode % 10 == 9:
            best = max(best, greedy_return(policy_net))
        if steps_done > 6000:
            break
    return Outcome(best, (policy_net, target_net))


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


class TwinCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network(3, 1), network(3, 1)

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([state, action], 1)
        return self.first(joined)[:, 0], self.second(joined)[:, 0]


class GaussianActor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.log_std = network(2, 32), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(state).relu()
        log_std = -5 + 3.5 * (self.log_std(hidden).tanh() + 1)
        normal = torch.distributions.Normal(self.mean(hidden), log_std.exp())
        raw = normal.rsample()
        action = raw.tanh()
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob[:, 0]


class Buffer:
    """The newest 10,000 transitions."""

    def __init__(self) -> None:
        self.rows = torch.empty(0, 6)

    def add(self, state: Tensor, action: Tensor, reward: Tensor, next_state: Tensor) -> None:
        self.rows = torch.cat([self.rows, torch.cat([state, action, reward[:, None], next_state], 1)])[-10_000:]

    def sample(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = self.rows[torch.randint(len(self.rows), (count,))]
        return rows[:, :2], rows[:, 2:3], rows[:, 3], rows[:, 4:]


def soft_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    for target_param, param in zip(target.parameters(), source.parameters(), strict=True):
        target_param.data.copy_(tau * param.data + (1 - tau) * target_param.data)


def soft_actor_critic() -> Outcome:
    """SAC with twin critics, a temperature that is learned, and three optimizers."""
    world, buffer = PointMass(16), Buffer()
    actor, critic = GaussianActor(), TwinCritic()
    critic_target = deepcopy(critic)
    log_alpha = torch.zeros(1, requires_grad=True)
    critic_optimizer = Adam(critic.parameters(), lr=1e-3)
    actor_optimizer = Adam(actor.parameters(), lr=3e-4)
    alpha_optimizer = Adam([log_alpha], lr=1e-3)
    rewards_seen = []
    for step in range(900):
        state = world.state
        with torch.no_grad():
            action = torch.rand(16, 1) * 2 - 1 if step < 50 else actor(state)[0]
        next_state, reward = world.step(action)
        buffer.add(state, action, reward, next_state)
        rewards_seen.append(reward.mean().item())
        if step < 50:
            continue
        states, actions, rewards, next_states = buffer.sample(64)
        with torch.no_grad():
            next_action, next_log_prob = actor(next_states)
            first, second = critic_target(next_states, next_action)
            soft_value = torch.min(first, second) - log_alpha.exp() * next_log_prob
            target = rewards + 0.95 * soft_value
        first, second = critic(states, actions)
        critic_loss = functional.mse_loss(first, target) + functional.mse_loss(second, target)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        new_action, log_prob = actor(states)
        actor_loss = (log_alpha.exp().detach() * log_prob - torch.min(*critic(states, new_action))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        alpha_loss = (-log_alpha.exp() * (log_prob.detach() - 1.0)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()
        soft_update(critic_target, critic, 0.01)
    return Outcome(sum(rewards_seen[-100:]) / 100, (actor, critic, critic_target, log_alpha))


def td3() -> Outcome:
    """Twin delayed DDPG: noise on target actions, the actor steps every second time."""
    world, buffer = PointMass(16), Buffer()
    actor, critic = nn.Sequential(network(2, 1), nn.Tanh()), TwinCritic()
    target_actor, target_critic = deepcopy(actor), deepcopy(critic)
    actor_optimizer = Adam(actor.parameters(), lr=5e-4)
    critic_optimizer = Adam(critic.parameters(), lr=1e-3)
    rewards_seen = []
    for step in range(1200):
        state = world.state
        with torch.no_grad():
            action = (actor(state) + 0.2 * torch.randn(16, 1)).clamp(-1, 1)
        next_state, reward = world.step(action)
        buffer.add(state, action, reward, next_state)
        rewards_seen.append(reward.mean().item())
        states, actions, rewards, next_states = buffer.sample(64)
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(actions)).clamp(-0.5, 0.5)
            next_actions = (target_actor(next_states) + noise).clamp(-1, 1)
            target = rewards + 0.95 * torch.min(*target_critic(next_states, next_actions))
        first, second = critic(states, actions)
        critic_loss = functional.mse_loss(first, target) + functional.mse_loss(second, target)
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        if step % 2 == 0:
            actor_loss = -critic(states, actor(states))[0].mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            soft_update(target_actor, actor, 0.01)
            soft_update(target_critic, critic, 0.01)
    return Outcome(sum(rewards_seen[-100:]) / 100, (actor, critic, target_actor, target_critic))
