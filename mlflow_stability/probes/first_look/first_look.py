"""Looks at a training in its first steps and now and then later: at losses, parameters and settings.

In: losses right before gradients are computed, optimizers before their steps. Out: findings, and signals of targets.
Guarantees: no device is waited for, nothing of the training is kept alive, and a step without a look costs nothing.
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
from mlflow_stability.probes.first_look.equal_weights import equal_weights
from mlflow_stability.probes.first_look.left_out import LeftOut
from mlflow_stability.probes.first_look.loss_graph import loss_input
from mlflow_stability.probes.first_look.module_settings import Accumulation, SharedParameters, strong_dropout
from mlflow_stability.probes.first_look.pairs import loss_over_pairs
from mlflow_stability.probes.first_look.precision import Precision
from mlflow_stability.probes.first_look.targets import Targets
from mlflow_stability.probes.first_look.untied_weights import copied_embeddings
from mlflow_stability.probes.objects import Kind, models_of, remembered
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
FIRST = 10
"""Up to this step the losses of each step are looked at; later those of the step after one of `STEPS`."""
MAX_LOOKS = 32
"""Number of losses of a step that are looked at."""
STEPS = (1, 2, 3, 10, 20, 100, 1000)
"""Steps of a recording before which parameters and settings are looked at."""
_DUE = tuple(sorted({*range(1, FIRST + 1), *STEPS, *(step + 1 for step in STEPS)}))
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
        look: Callable[[bool], None],
    ) -> None:
        self._report, self._models, self._step, self._switch = emit, models, step, look
        """The last one switches `at_loss` on or off."""
        self._looks = 0
        self._until = FIRST
        """The last step whose losses are looked at."""
        self._targets, self._precision = Targets(), Precision()
        self._weights: list[Block] = []
        """Whether weights differ, and whether output layers are copies of embeddings, before the first step."""
        self._accumulation, self._shared = Accumulation(), SharedParameters()
        self._left_out = LeftOut()
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._looked_at = 0
        self._chances: list[float | None] = []
        """Chance levels of the losses of one step; None for a loss without one."""
        self._loss_step = 0
        """The step of the losses that were looked at last."""
        self._found: set[str] = set()

    def at_loss(self, tensors: Any) -> None:
        """Look at what a backward pass begins from."""
        step = self._step()
        if not self._loss_step:
            self._until = max(self._until, step + FIRST - 2)  # a training that was resumed has first losses as well
        if step > self._until:
            self._switch(False)
            return
        if step != self._loss_step:
            self._chances, self._looks, self._loss_step = [], 0, step
            self._targets.clear()
        losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
        for loss in losses:
            if isinstance(loss, Tensor) and loss.grad_fn is not None:
                self._looks += 1
                if self._looks > MAX_LOOKS:
                    self._chances.append(None)
                    return
                self._emit(loss_input(loss, self._models(), step))
                self._emit(loss_over_pairs(loss, step))
                self._chances.append(chance_loss(loss))
                self._targets.note(loss)
                self._emit(self._accumulation.note(loss, step))

    def due(self, step: int) -> bool:
        """Whether to look at this step."""
        return step in _DUE

    def next_due(self, step: int) -> int:
        """The next of these steps."""
        return next((due for due in _DUE if due > step), 1 << 62)

    def before_step(self, view: StepView) -> None:
        """Look at the settings of an optimizer; at the first one of a step, at all models."""
        if view.step not in STEPS:
            return
        if view.step > self._until:
            self._until = view.step + 1
            self._switch(True)
        if view.step == 1 and not self._optimizers:
            self._weights = [*equal_weights(view.optimizer), *copied_embeddings(models_of([view.optimizer]))]
        seen: list[Optimizer] = [held for reference in self._optimizers if (held := reference()) is not None]
        if view.step >= KNOWN_FROM:
            self._emit(strong_decay(view.optimizer, view.step))
            self._emit(self._shared.look(view.optimizer, view.step))
            if self._looked_at != view.step:
                self._look_at_parameters(seen, view.step)
                self._precision.before_step(view)
                self._emit(strong_dropout(self._models(), view.step))
        if all(held is not view.optimizer for held in seen):
            self._optimizers.append(weakref.ref(view.optimizer))
        self._left_out.note_gradients(view.optimizer)
        self._looked_at = view.step

    def after_step(self, view: StepView) -> None:
        """Look at what the step has changed."""
        self._precision.after_step(view)

    def forget(self) -> None:
        """The capture was interrupted half-way: let go of what was measured in it."""
        self._chances = []
        self._targets.clear()
        self._precision.forget()

    def blocks(self, _step: int) -> Sequence[Block]:
        """Targets of this step, and chance level of its loss where it is known of each of its micro-batches."""
        levels, self._chances = self._chances, []
        known = [level for level in levels if level is not None]
        chance = [Block(CHANCE, (sum(known),))] if known and len(known) == len(levels) else []
        weights, self._weights = self._weights, []
        return [*chance, *weights, *self._targets.blocks(), *self._precision.blocks()]

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
