"""One cycle: a backward phase and the optimizer steps that consume it, as far as it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.layer_statistics import Table

MOST_LOSSES = 1024


@dataclass(slots=True)
class Clip:
    """A norm that the script itself computed over gradients, before it clipped them."""

    norm: Tensor
    order: float
    """The p of the norm; only 2 can stand for ``grad_norm``."""
    gradients: frozenset[int]
    """Which gradients, by identity."""
    scale: Tensor | None
    """The loss scale that the gradients still carried."""


@dataclass(frozen=True, slots=True)
class Zeroed:
    """Gradients were set to zero: losses from before are not what an optimizer of these parameters follows."""

    parameters: frozenset[int]
    """Which, by identity."""
    losses: int
    """How many losses came before."""
    micro_batches: int


@dataclass(slots=True)
class Cycle:
    """What was seen of one cycle. Tensors in it are scalars on their device."""

    losses: list[Tensor] = field(default_factory=list)
    micro_batches: int = 0
    zeroed: dict[int, Zeroed] = field(default_factory=dict)
    """For each optimizer or module, by identity, when it last set its gradients to zero."""
    clips: list[Clip] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)
    """With which limits gradients were clipped: ``max_norm``, ``clip_value``."""
    norms: list[Tensor] = field(default_factory=list)
    """At the gates: what the optimizers were given."""
    gradients: set[int] = field(default_factory=set)
    """The gradients behind `norms`, by identity; kept only when there are clips to compare with."""
    learning_rates: dict[str, float | Tensor] = field(default_factory=dict)
    stepped: list[int] = field(default_factory=list)
    """The optimizers that reached their gate, by identity, in order."""
    ended: set[int] = field(default_factory=set)
    """Those of them whose step is over."""
    track: int = -1
    """Which of several trainings in this process it belongs to: the halves of a GAN alternate."""
    loss_scale: Tensor | None = None
    found_inf: list[Tensor] = field(default_factory=list)
    """Flags of a loss scaler: above zero where it threw the step away."""
    owner: Any = None
    """What the cycle belongs to, as the session said at its gate."""
    scaler: Any = None
    """The loss scaler that scaled a loss of this cycle."""
    unscaled: bool = False
    """Whether that scaler has divided the gradients by its scale already."""
    blocks: Sequence[Block] = ()
    """What the probes measured that were due."""
    tables: Sequence[Table] = ()
    """How gradients and weights were spread in each layer, where that was due."""

    @property
    def has_gate(self) -> bool:
        """Whether an optimizer has begun to consume the gradients."""
        return bool(self.stepped)

    def drop_zeroed(self, optimizer: Optimizer) -> None:
        """Forget the losses whose gradients were set to zero before this optimizer came to its gate."""
        if not self.zeroed:
            return
        parameters = {id(each) for group in optimizer.param_groups for each in group["params"]}
        latest = [each for each in self.zeroed.values() if parameters <= each.parameters]
        if latest:
            del self.losses[: max(each.losses for each in latest)]
            self.micro_batches -= max(each.micro_batches for each in latest)

    def condense(self) -> None:
        """Keep only the sum of many losses: where no gate comes for so long, hardly one will."""
        if len(self.losses) <= MOST_LOSSES:
            return
        self.losses[:] = [torch.stack([each.to(self.losses[0]) for each in self.losses]).sum()]
        self.zeroed.clear()
