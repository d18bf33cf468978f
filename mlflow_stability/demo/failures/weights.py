"""Failures of the weights: a flipped bit, weight decay, an initialisation far too small or too large."""

from __future__ import annotations

import torch
from torch import nn

from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.language import scheduled_gpt
from mlflow_stability.demo.tasks.loop import FailurePoints
from mlflow_stability.demo.tasks.tables import deep_classification
from mlflow_stability.demo.tasks.task import Task

STEP = 261
LAST = 280
HIGHEST_BIT_OF_THE_EXPONENT = 1 << 30


class FlippedBit(FailurePoints):
    """Flips a bit in the exponent of one weight."""

    def before(self, step: int, task: Task) -> None:
        """Runs before the step."""
        if step == STEP:
            weight = task.model.get_parameter("blocks.0.mlp.0.weight").data
            weight.view(torch.int32)[3, 5] ^= HIGHEST_BIT_OF_THE_EXPONENT


class TooStrongForAWhile(FailurePoints):
    """Multiplies the weight decay by 10,000 for 20 steps."""

    def before(self, step: int, task: Task) -> None:
        """Runs before the step."""
        if step in (STEP, LAST + 1):
            for group in task.optimizer.param_groups:
                group["weight_decay"] *= 1e4 if step == STEP else 1e-4


class ScaledInitialisation(FailurePoints):
    """Multiplies all initial weight matrices by a factor."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def before(self, step: int, task: Task) -> None:
        """Runs before the step."""
        if step == 1:
            with torch.no_grad():
                for each in task.model.modules():
                    if isinstance(each, nn.Linear):
                        each.weight *= self._factor


BIT_FLIP = Failure(
    name="bit flip",
    what="A bit in the exponent of one weight flips, and the weight is about 1e37.",
    task=scheduled_gpt,
    trouble=FlippedBit(),
    onset=STEP,
    recoverable=True,
    why="Weights from before; leaving out steps does nothing, for the weight stays what it is.",
    causes=("damaged_weights", "hardware"),
)
WEIGHT_DECAY = Failure(
    name="weight decay gone wrong",
    what="Weight decay is 100 for twenty steps: the weights shrink to a few per cent.",
    task=scheduled_gpt,
    trouble=TooStrongForAWhile(),
    onset=STEP + 1,
    recoverable=True,
    why="Weights from before; it must be done again where the first time came too early.",
    causes=("weight_decay",),
)
SMALL_INITIALISATION = Failure(
    name="initialisation x0.01",
    what="All initial weights are a hundredth of the usual ones: no gradient reaches the first layers.",
    task=deep_classification,
    trouble=ScaledInitialisation(0.01),
    onset=1,
    recoverable=False,
    why="The initialisation has to change.",
    causes=("vanishing_gradients",),
)
LARGE_INITIALISATION = Failure(
    name="initialisation x10",
    what="All initial weights are ten times the usual ones: the first update is so large that numbers overflow.",
    task=deep_classification,
    trouble=ScaledInitialisation(10.0),
    onset=1,
    recoverable=False,
    why="The initialisation has to change.",
    causes=("gradient_explosion", "overflow"),
)
