"""Worlds that agents act in, in place of a package with environments."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

LONGEST_EPISODE = 200


class CartPole:
    """A pole on a cart: the equations and limits of Gym's CartPole, with episodes of at most 200 steps."""

    def __init__(self) -> None:
        self.state = (0.0, 0.0, 0.0, 0.0)
        self.steps = 0

    def reset(self) -> Tensor:
        position, speed, angle, turn = (random.uniform(-0.05, 0.05) for _ in range(4))
        self.state, self.steps = (position, speed, angle, turn), 0
        return torch.tensor(self.state)

    def step(self, action: int) -> tuple[Tensor, float, bool, bool]:
        """Return the next observation, the reward, and whether the episode has ended or was cut."""
        position, speed, angle, turn = self.state
        force = 10.0 if action == 1 else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * turn * turn * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        pushing = push - 0.05 * turning * cos / 1.1
        self.state = (position + 0.02 * speed, speed + 0.02 * pushing, angle + 0.02 * turn, turn + 0.02 * turning)
        self.steps += 1
        ended = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180
        return torch.tensor(self.state), 1.0, ended, self.steps >= LONGEST_EPISODE


class PointMass:
    """Many masses on a line at once; the action is a force in -1 to 1, the reward is high at rest in the middle."""

    def __init__(self, count: int) -> None:
        self.state = self._start(count)

    def _start(self, count: int) -> Tensor:
        return torch.rand(count, 2) * 2 - 1

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        position, speed = self.state.unbind(1)
        speed = 0.9 * speed + 0.3 * action[:, 0]
        position = (position + 0.3 * speed).clamp(-2, 2)
        reward = 1 - position.abs() - 0.1 * action[:, 0] ** 2
        self.state = torch.stack([position, speed], 1)
        observed = self.state
        again = torch.rand(len(position)) < 0.05
        self.state = torch.where(again[:, None], self._start(len(position)), self.state)
        return observed, reward
