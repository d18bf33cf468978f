"""Policy gradients: batches come from the agent's own actions, and losses have signs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional
from torch.optim import Adam
from zoo.tutorials.tutorial import Outcome
from zoo.tutorials.worlds import CartPole

SMALLEST = float(np.finfo(np.float32).eps)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1 = nn.Linear(4, 128)
        self.dropout = nn.Dropout(p=0.6)
        self.affine2 = nn.Linear(128, 2)
        self.saved_log_probs: list[Tensor] = []
        self.rewards: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.dropout(self.affine1(x)))
        return functional.softmax(self.affine2(x), dim=1)


def discounted(rewards: list[float]) -> Tensor:
    total, returns = 0.0, []
    for reward in rewards[::-1]:
        total = reward + 0.99 * total
        returns.insert(0, total)
    values = torch.tensor(returns)
    return (values - values.mean()) / (values.std() + SMALLEST)


def reinforce() -> Outcome:
    """REINFORCE as in pytorch/examples: one update for each episode, until the running reward is reached."""
    world, policy = CartPole(), Policy()
    optimizer = Adam(policy.parameters(), lr=1e-2)
    running_reward = 10.0
    for _ in range(400):
        state, episode_reward, over = world.reset(), 0.0, False
        while not over:
            probs = policy(state.unsqueeze(0))
            chosen = Categorical(probs)
            action = chosen.sample()
            policy.saved_log_probs.append(chosen.log_prob(action))
            state, reward, ended, cut = world.step(int(action.item()))
            policy.rewards.append(reward)
            episode_reward += reward
            over = ended or cut
        running_reward = 0.05 * episode_reward + 0.95 * running_reward
        policy_loss = [
            -log_prob * r for log_prob, r in zip(policy.saved_log_probs, discounted(policy.rewards), strict=True)
        ]
        optimizer.zero_grad()
        torch.cat(policy_loss).sum().backward()
        optimizer.step()
        del policy.rewards[:]
        del policy.saved_log_probs[:]
        if running_reward > 90:
            break
    return Outcome(running_reward, (policy,))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1 = nn.Linear(4, 128)
        self.action_head = nn.Linear(128, 2)
        self.value_head = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.relu(self.affine1(x))
        return functional.softmax(self.action_head(x), dim=-1), self.value_head(x)


def actor_critic() -> Outcome:
    """Actor and critic as in pytorch/examples: both losses are summed over the episode."""
    world, model = CartPole(), ActorCritic()
    optimizer = Adam(model.parameters(), lr=1e-2)
    running_reward = 10.0
    for _ in range(400):
        state, over = world.reset(), False
        saved: list[tuple[Tensor, Tensor]] = []
        rewards = []
        while not over:
            probs, value = model(state)
            chosen = Categorical(probs)
            action = chosen.sample()
            saved.append((chosen.log_prob(action), value))
            state, reward, ended, cut = world.step(int(action.item()))
            rewards.append(reward)
            over = ended or cut
        running_reward = 0.05 * sum(rewards) + 0.95 * running_reward
        policy_losses, value_losses = [], []
        for (log_prob, value), wanted in zip(saved, discounted(rewards), strict=True):
            policy_losses.append(-log_prob * (wanted - value.item()))
            value_losses.append(functional.smooth_l1_loss(value, wanted[None]))
        optimizer.zero_grad()
        loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
        loss.backward()
        optimizer.step()
        if running_reward > 90:
            break
    return Outcome(running_reward, (model,))


def layer_init(layer: nn.Linear, std: float = 2**0.5) -> nn.Linear:
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )  # fmt: skip
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 2), std=0.01),
        )  # fmt: skip

    def get_value(self, x: Tensor) -> Tensor:
        return self.critic(x)

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def ppo() -> Outcome:
    """PPO as in cleanrl: four environments, clipped value loss, the learning rate falls to zero."""
    envs, agent = [CartPole() for _ in range(4)], Agent()
    optimizer = Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
    num_updates, num_steps = 40, 64
    next_obs, next_done = torch.stack([env.reset() for env in envs]), torch.zeros(4)
    episode, returns_seen = [0.0] * 4, []
    for update in range(1, num_updates + 1):
        optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / num_updates) * 2.5e-3
        obs, dones = torch.zeros(num_steps, 4, 4), torch.zeros(num_steps, 4)
        actions, logprobs, rewards, values = (torch.zeros(num_steps, 4) for _ in range(4))
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step], logprobs[step] = action, logprob
            for number, env in enumerate(envs):
                state, reward, ended, cut = env.step(int(action[number]))
                rewards[step, number], next_done[number] = reward, float(ended or cut)
                episode[number] += reward
                if ended or cut:
                    returns_seen.append(episode[number])
                    state, episode[number] = env.reset(), 0.0
                next_obs[number] = state
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages, last = torch.zeros_like(rewards), torch.zeros(4)
            for t in reversed(range(num_steps)):
                nonterminal = 1.0 - (next_done if t == num_steps - 1 else dones[t + 1])
                nextvalues = next_value[0] if t == num_steps - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * nextvalues * nonterminal - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * nonterminal * last
            returns = advantages + values
        b_obs, b_logprobs, b_actions = obs.reshape(-1, 4), logprobs.reshape(-1), actions.reshape(-1)
        b_advantages, b_returns, b_values = advantages.reshape(-1), returns.reshape(-1), values.reshape(-1)
        b_inds = np.arange(256)
        for _ in range(4):
            np.random.shuffle(b_inds)
            for start in range(0, 256, 64):
                mb = b_inds[start : start + 64]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb])
                ratio = (newlogprob - b_logprobs[mb]).exp()
                mb_adv = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                pg_loss = torch.max(-mb_adv * ratio, -mb_adv * torch.clamp(ratio, 0.8, 1.2)).mean()
                newvalue = newvalue.view(-1)
                v_clipped = b_values[mb] + torch.clamp(newvalue - b_values[mb], -0.2, 0.2)
                v_loss = torch.max((newvalue - b_returns[mb]) ** 2, (v_clipped - b_returns[mb]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + 0.5 * 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
    return Outcome(sum(returns_seen[-20:]) / 20, (agent,))
