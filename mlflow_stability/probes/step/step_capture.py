"""What the hooks saw of one capture: a backward phase and the optimizer steps that use its gradients.

Losses, norms before clipping, clipping thresholds, learning rates, the loss scale. In: what a hook was called with.
Out: scalars, still on their device. Guarantees: values are copies where the script or torch may change the original
in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_statistics import Table
from mlflow_stability.probes.step.readback import value_on_host

MOST_LOSSES = 1024


@dataclass(slots=True)
class Clip:
    """A norm that the script itself computed over gradients, before it clipped them."""

    norm: Tensor | float
    order: float
    """The p of the norm; only 2 can stand for ``grad_norm``."""
    gradients: frozenset[int]
    """Which gradients, by identity."""
    scale: Tensor | None
    """The loss scale that the gradients still carried."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """Gradients were set to zero or None: losses from before are not what an optimizer of these parameters follows."""

    parameters: frozenset[int]
    """Which, by identity."""
    losses: int
    """How many losses came before."""
    micro_batches: int


class StepCapture:
    """What was seen of one capture. Tensors in it are scalars on their device."""

    # One is made at every step: no dataclass, whose `__init__` would set each of these.
    micro_batches = replays = 0
    """Backward passes, and replays of CUDA graphs."""
    unsure = 0
    """Of how many of the first losses nobody can tell whether their gradients are still there."""
    squares_here: Tensor | None = None
    """Of the gradients of its first optimizer, the share of this process in their squares, where a model is split."""
    clipped_by_stage = False
    """Whether the norm that clipping took is in `squares_here`: that of one pipeline stage."""
    loss_here: Tensor | float | None = None
    """Of a pipeline, the loss of this process, where it has the last stage."""
    loss_of_all: float | None = None
    """The same as its processes together know it."""
    norm_of_all: float | None = None
    """Of all gradients of a split model, as its processes together know it."""
    track = -1
    """Which of several trainings in this process it belongs to: the halves of a GAN alternate."""
    place = ""
    """Where its loss and norms belong."""
    begins_step = True
    """Whether a step begins with it; else it belongs to the same step as the capture of another track before it."""
    loss_scale: Tensor | None = None
    owner: Any = None
    """What the capture belongs to, as the session said at its first step."""
    scaler: Any = None
    """The loss scaler that scaled a loss of this capture."""
    unscaled = False
    """Whether that scaler has divided the gradients by its scale already."""
    engine: Any = None
    """What has copied the gradients, clips them itself and says what their norm was."""
    copied = False
    """Whether the optimizer's gradients are copies of those of the backward pass, or come from an engine that does not
    say what their norm was: they may have been clipped where no hook sees it."""
    blocks: Sequence[Block] = ()
    """What the probes measured that were due."""
    tables: Sequence[Table] = ()
    """How gradients and weights were spread in each layer, where that was due."""

    def __init__(self) -> None:
        self.losses: list[Tensor | float] = []
        """On their device; numbers where that is the host."""
        self.discards: dict[int, Discarded] = {}
        """For each optimizer or module, by identity, when its gradients were last discarded."""
        self.discarded_losses: list[Tensor | float] = []
        """Losses whose gradients the script discarded before the step: they belong to none."""
        self.clips: list[Clip] = []
        self.limits: dict[str, float] = {}
        """With which limits gradients were clipped: ``max_norm``, ``clip_value``."""
        self.norms: list[Tensor | float] = []
        """What the optimizers were given."""
        self.gradients: set[int] = set()
        """The gradients behind `norms`, by identity; kept only when there are clips to compare with."""
        self.learning_rates: dict[str, float | Tensor] = {}
        self.stepped: list[int] = []
        """The optimizers that began their step, by identity, in order."""
        self.ended: set[int] = set()
        """Those of them whose step is over."""
        self.found_inf: list[Tensor] = []
        """Flags of a loss scaler: above zero where it threw the step away."""

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has begun to consume the gradients."""
        return bool(self.stepped)

    @property
    def sure_losses(self) -> list[Tensor | float]:
        """The losses that this step is known to follow; what the others left is seen in the gradients."""
        return self.losses[self.unsure :] if self.unsure else self.losses

    def discard(self, owner: object, parameters: Iterable[Tensor]) -> None:
        """The gradients of these parameters are gone."""
        self.discards[id(owner)] = Discarded(frozenset(map(id, parameters)), len(self.losses), self.micro_batches)

    def drop_discarded(self, optimizer: Optimizer) -> None:
        """Set the losses aside whose gradients were discarded before this optimizer began its step."""
        if not self.discards:
            return
        parameters = {id(each) for group in optimizer.param_groups for each in group["params"]}
        latest = [each for each in self.discards.values() if parameters <= each.parameters]
        if latest:
            self.set_aside(max(each.losses for each in latest), max(each.micro_batches for each in latest))

    def set_aside(self, losses: int, micro_batches: int) -> None:
        """The first losses, of so many backward passes, belong to no step."""
        self.discarded_losses += self.losses[:losses]
        del self.losses[:losses]
        self.unsure = max(0, self.unsure - losses)
        self.micro_batches -= micro_batches

    def condense(self) -> None:
        """Keep only the sum of many losses: where no step comes for so long, hardly one will."""
        if len(self.losses) <= MOST_LOSSES:
            return
        far = next((each for each in self.losses if isinstance(each, Tensor)), None)
        if far is None:
            self.losses[:] = [sum(self.losses)]
        else:
            self.losses[:] = [torch.stack([torch.as_tensor(each).to(far) for each in self.losses]).sum()]
        self.unsure = min(self.unsure, 1)
        self.discards.clear()


UnscaledLoss: TypeAlias = tuple[weakref.ref[Tensor], Tensor]
"""A scaled loss, and what it was before."""


class KnownOptimizer:
    """What does not change of an optimizer from step to step."""

    __slots__ = ("_group_place", "engine", "is_settled", "optimizer", "place", "rate_places", "track")

    def __init__(
        self, optimizer: Optimizer, track: int, place: str, group_place: Callable[[Optimizer, int], str]
    ) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.track = track
        self.place = place
        """Where the losses and norms of its track belong."""
        self.rate_places: list[str] = []
        """Where the learning rate of each group belongs."""
        self.is_settled = False
        """Whether backward passes are known to reach it, and it is known which engine steps it."""
        self.engine: weakref.ref[Any] | None = None
        self._group_place = group_place

    def learn_groups(self, optimizer: Optimizer, count: int) -> None:
        """A group was added."""
        self.rate_places = [self._group_place(optimizer, number) for number in range(count)]


def take_losses(capture: StepCapture, tensors: Any, unscaled: UnscaledLoss | None) -> None:
    """What was passed to backward, as it was before a loss scaler."""
    for tensor in (tensors,) if isinstance(tensors, Tensor) else tensors:
        if not isinstance(tensor, Tensor) or tensor.numel() != 1 or tensor.is_meta or hasattr(tensor, "full_tensor"):
            continue  # a vector passed on by hand, as pipelines do, is no loss
        loss = tensor
        if unscaled is not None and unscaled[0]() is tensor:
            loss = unscaled[1]
        elif capture.scaler is not None:
            loss = loss.detach() / capture.scaler._scale
        capture.losses.append(taken(loss))


def taken(scalar: Tensor) -> Tensor | float:
    """A scalar as it is now, for a script may go on to change it in place: a number, or a copy on its device."""
    value = value_on_host(scalar)
    return scalar.detach().reshape(()).clone() if value is None else value


def take_rates(capture: StepCapture, optimizer: Optimizer, known: KnownOptimizer) -> None:
    """The learning rate of each group."""
    groups = optimizer.param_groups
    if len(groups) != len(known.rate_places):
        known.learn_groups(optimizer, len(groups))
    for place, group in zip(known.rate_places, groups, strict=True):
        rate = group.get("lr")
        if rate is not None:
            capture.learning_rates[place] = taken(rate) if isinstance(rate, Tensor) else float(rate)


def take_scale(capture: StepCapture, optimizer: Optimizer) -> None:
    """The loss scale, and what the optimizer was told of it."""
    scaler = capture.scaler
    if scaler is not None and scaler._scale is not None:
        capture.loss_scale = scaler._scale.clone()  # `update` changes it in place
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is not None:
        capture.found_inf.append(found_inf.detach().clone())
