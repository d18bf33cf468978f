"""Looks at a training in its first steps and now and then later: at losses, parameters and settings.

In: losses right before gradients are computed, optimizers before their steps. Out: findings. Guarantees: nothing is
read from a device, nothing of the training is kept alive, and a step without a look costs nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.first_look.chance import chance_loss
from mlflow_stability.probes.first_look.decay import strong_decay
from mlflow_stability.probes.first_look.left_out import LeftOut
from mlflow_stability.probes.first_look.loss_graph import loss_input
from mlflow_stability.probes.first_look.pairs import loss_over_pairs
from mlflow_stability.probes.objects import Kind, remembered
from mlflow_stability.probes.probe import BaseProbe, StepView
from mlflow_stability.vocabulary.measured import Signal, SignalType
from mlflow_stability.vocabulary.result import Finding

SIGNALS = (
    SignalType(
        "chance_loss",
        "loss of a model that gives each class the same probability; first steps, for cross entropy alone",
        "loss_statistics",
    ),
)
CHANCE = (Signal("chance_loss", ""),)
MAX_LOOKS = 8
"""Number of first backward passes that are looked at: those of a GAN's halves have graphs of their own."""
STEPS = (1, 2, 3, 10, 20, 100, 1000)
"""Steps of a recording before which parameters and settings are looked at."""
KNOWN_FROM = 10
"""From this step on all optimizers are taken to be there, and a warm-up to have begun."""
LONG = 100
"""From this step on a parameter without a gradient so far is taken to have none at all."""


class FirstLook(BaseProbe):
    """The first backward passes of a training, and some of its steps."""

    part = "first look"
    is_periodic = True

    def __init__(
        self,
        emit: Callable[[Finding], None],
        models: Callable[[], Sequence[Module]],
        step: Callable[[], int],
        stop: Callable[[], None],
    ) -> None:
        self._report, self._models, self._step, self._stop = emit, models, step, stop
        self._looks = 0
        self._left_out = LeftOut()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._looked_at = 0
        self._chances: list[float | None] = []
        """Chance levels of the losses of one step; None for a loss without one."""
        self._chance_step = 0
        self._found: set[str] = set()

    def at_loss(self, tensors: Any) -> None:
        """Look at what a backward pass begins from."""
        self._looks += 1
        step = self._step()
        if step != self._chance_step:
            self._chances, self._chance_step = [], step
        losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
        for loss in losses:
            if isinstance(loss, Tensor) and loss.grad_fn is not None:
                self._emit(loss_input(loss, self._models(), self._step()))
                self._emit(loss_over_pairs(loss, self._step()))
                self._chances.append(chance_loss(loss))
        if self._looks >= MAX_LOOKS:
            self._stop()

    def due(self, step: int) -> bool:
        """Whether to look at this step."""
        return step in STEPS

    def next_due(self, step: int) -> int:
        """The next of these steps."""
        return next((due for due in STEPS if due > step), 1 << 62)

    def before_step(self, view: StepView) -> None:
        """Look at the settings of an optimizer; at the first one of a step, at all models."""
        seen: list[Optimizer] = [held for reference in self._optimizers if (held := reference()) is not None]
        if view.step >= KNOWN_FROM:
            self._emit(strong_decay(view.optimizer, view.step))
            if self._looked_at != view.step:
                self._look_at_parameters(seen, view.step)
        if all(held is not view.optimizer for held in seen):
            self._optimizers.append(weakref.ref(view.optimizer))
        self._left_out.note_gradients(view.optimizer)
        self._looked_at = view.step

    def blocks(self, _step: int) -> Sequence[Block]:
        """Chance level of the loss of this step, where it is known of each of its micro-batches."""
        levels, self._chances = self._chances, []
        known = [level for level in levels if level is not None]
        return [Block(CHANCE, (sum(known),))] if known and len(known) == len(levels) else []

    def _look_at_parameters(self, seen: Sequence[Optimizer], step: int) -> None:
        models = self._models()
        for finding in self._left_out.look(models, seen, step, lambda: remembered(Kind.OPTIMIZER)[0]):
            self._emit(finding)
        if step >= LONG:
            self._emit(self._left_out.without_gradient(models, seen, step))

    def _emit(self, finding: Finding | None) -> None:
        """Report a finding, once of each kind."""
        if finding is not None and finding.kind not in self._found:
            self._found.add(finding.kind)
            self._report(finding)
