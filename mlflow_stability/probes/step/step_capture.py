"""What hooks record of one capture: a backward phase and the optimizer steps that use its gradients.

Also which captures are one step, and which optimizers are one capture.

Scalars stay on their device; they are copies where the script or torch may change the original in place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.parameters.layer_statistics import Table
from mlflow_stability.probes.step.readback import Block, value_on_host

MAX_LOSSES = 1024  # losses of one capture; of more only the sum is kept


@dataclass(slots=True)
class Clip:
    """A norm that the script itself computed over gradients, before it clipped them."""

    norm: Tensor | float
    order: float
    """The p of the norm; only 2 can be ``grad_norm``."""
    gradients: frozenset[int]
    """Identities of the gradients."""
    scale: Tensor | None
    """The loss scale that the gradients still carried."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """Gradients that were set to zero or None: an optimizer of these parameters does not follow the earlier losses."""

    parameters: frozenset[int]
    """Identities of the parameters."""
    losses: int
    """Number of losses before."""
    micro_batches: int


class StepCapture:
    """One capture. Tensors in it are scalars on their device."""

    # One is created at every step: no dataclass, whose `__init__` would set each of these.
    micro_batches = replays = 0
    """Backward passes, and replays of CUDA graphs."""
    unsure = 0
    """Number of first losses whose gradients may have been discarded."""
    squares_here: Tensor | None = None
    """This process's share of the squared gradient norm of the first optimizer, where a model is split."""
    clipped_by_stage = False
    """Whether the norm of the clipping, that of one pipeline stage, is in `squares_here`."""
    loss_here: Tensor | float | None = None
    """The loss of this process, where it has the last stage of a pipeline."""
    loss_of_all: float | None = None
    """The loss of all processes of the pipeline."""
    norm_of_all: float | None = None
    """The gradient norm of a split model over all processes."""
    track = -1
    """Its training, of several in this process: the halves of a GAN alternate."""
    place = ""
    """The place of its loss and norms."""
    begins_step = True
    """Whether it begins a step; else it belongs to the step of the capture of another track before it."""
    loss_scale: Tensor | None = None
    owner: Any = None
    """The recording of the capture."""
    newest: tuple[weakref.ref[Tensor], int] | None = None
    """The loss of the newest backward pass, and its version counter."""
    scaler: Any = None
    """The loss scaler that scaled a loss of this capture."""
    unscaled = False
    """Whether that scaler has already divided the gradients by its scale."""
    engine: Any = None
    """The engine that has copied the gradients, clips them itself and knows their norm."""
    copied = False
    """Whether the optimizer's gradients are copies, or come from an engine that does not return their norm: they may
    have been clipped where no hook sees it."""
    blocks: Sequence[Block] = ()
    """Measurements of the probes that were due."""
    tables: Sequence[Table] = ()
    """Distributions of gradients and weights in each layer, where due."""

    def __init__(self) -> None:
        self.losses: list[Tensor | float] = []  # tensors on a device, or numbers
        self.discards: dict[int, Discarded] = {}
        """By identity of an optimizer or module, the last time that its gradients were discarded."""
        self.discarded_losses: list[Tensor | float] = []
        """Losses whose gradients the script discarded before the step; they belong to no step."""
        self.clips: list[Clip] = []
        self.limits: dict[str, float] = {}  # limits of gradient clipping: ``max_norm``, ``clip_value``
        self.norms: list[Tensor | float] = []  # norms of the gradients that the optimizers got
        self.gradients: set[int] = set()
        """Identities of the gradients of `norms`; kept only when there are clips to compare with."""
        self.learning_rates: dict[str, float | Tensor] = {}
        self.stepped: list[int] = []  # identities of the optimizers that began their step, in order
        self.ended: set[int] = set()  # those whose step is over
        self.found_inf: list[Tensor] = []  # flags of a loss scaler, above zero where it skipped the step

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has begun to consume the gradients."""
        return bool(self.stepped)

    @property
    def sure_losses(self) -> list[Tensor | float]:
        """The losses whose gradients were certainly not discarded."""
        return self.losses[self.unsure :] if self.unsure else self.losses

    def repeats(self, loss: Tensor) -> bool:
        """Return whether the backward pass before began at this loss as well, and its gradients were kept."""
        before, self.newest = self.newest, (weakref.ref(loss), loss._version)
        if before is None or before[0]() is not loss or before[1] != loss._version:
            return False
        return bool(self.losses) and not self.discards

    def discard(self, owner: object, parameters: Iterable[Tensor]) -> None:
        """Note that the gradients of these parameters were discarded."""
        self.discards[id(owner)] = Discarded(frozenset(map(id, parameters)), len(self.losses), self.micro_batches)

    def drop_discarded(self, optimizer: Optimizer) -> None:
        """Set aside losses whose gradients were discarded before this optimizer began its step."""
        if not self.discards:
            return
        parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        discards = [discard for discard in self.discards.values() if parameters <= discard.parameters]
        if discards:
            losses = max(discard.losses for discard in discards)
            self.set_aside(losses, max(discard.micro_batches for discard in discards))

    def set_aside(self, losses: int, micro_batches: int) -> None:
        """Move the first losses, of this number of backward passes, to those that belong to no step."""
        self.discarded_losses += self.losses[:losses]
        del self.losses[:losses]
        self.unsure = max(0, self.unsure - losses)
        self.micro_batches -= micro_batches

    def condense(self) -> None:
        """Replace many losses by their sum: after this many, a step is unlikely."""
        if len(self.losses) <= MAX_LOSSES:
            return
        on_device = next((loss for loss in self.losses if isinstance(loss, Tensor)), None)
        if on_device is None:
            self.losses[:] = [sum(self.losses)]
        else:
            self.losses[:] = [torch.stack([torch.as_tensor(loss).to(on_device) for loss in self.losses]).sum()]
        self.unsure = min(self.unsure, 1)
        self.discards.clear()


UnscaledLoss: TypeAlias = tuple[weakref.ref[Tensor], Tensor]  # a scaled loss, and its value before


class KnownOptimizer:
    """Facts about an optimizer that do not change from step to step."""

    __slots__ = ("_group_place", "engine", "is_settled", "optimizer", "place", "rate_places", "track")

    def __init__(
        self, optimizer: Optimizer, track: int, place: str, group_place: Callable[[Optimizer, int], str]
    ) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.track = track
        self.place = place  # the place of the losses and norms of its track
        self.rate_places: list[str] = []  # the place of each group's learning rate
        self.is_settled = False
        """Whether backward passes are known to reach it, and the engine that steps it is known."""
        self.engine: weakref.ref[Any] | None = None
        self._group_place = group_place

    def learn_groups(self, optimizer: Optimizer, count: int) -> None:
        """Name the places of this number of groups."""
        self.rate_places = [self._group_place(optimizer, number) for number in range(count)]


def take_losses(capture: StepCapture, tensors: Any, unscaled: UnscaledLoss | None) -> None:
    """Record the tensors passed to backward, as they were before a loss scaler."""
    for tensor in (tensors,) if isinstance(tensors, Tensor) else tensors:
        if not isinstance(tensor, Tensor) or tensor.numel() != 1 or tensor.is_meta or hasattr(tensor, "full_tensor"):
            continue  # vectors, which pipelines pass by hand, are no losses
        loss = tensor
        if unscaled is not None and unscaled[0]() is tensor:
            loss = unscaled[1]
        elif capture.scaler is not None:
            loss = loss.detach() / capture.scaler._scale
        capture.losses.append(current_value(loss))


def current_value(scalar: Tensor) -> Tensor | float:
    """Return a number, or a copy on the device, as a script may change the scalar in place."""
    value = value_on_host(scalar)
    return scalar.detach().reshape(()).clone() if value is None else value


def take_rates(capture: StepCapture, optimizer: Optimizer, known_optimizer: KnownOptimizer) -> None:
    """Record the learning rate of each group."""
    groups = optimizer.param_groups
    if len(groups) != len(known_optimizer.rate_places):
        known_optimizer.learn_groups(optimizer, len(groups))
    for place, group in zip(known_optimizer.rate_places, groups, strict=True):
        rate = group.get("lr")
        if rate is not None:
            capture.learning_rates[place] = current_value(rate) if isinstance(rate, Tensor) else float(rate)


def take_scale(capture: StepCapture, optimizer: Optimizer) -> None:
    """Record the loss scale, and the overflow flag that the optimizer was given."""
    scaler = capture.scaler
    if scaler is not None and scaler._scale is not None:
        capture.loss_scale = scaler._scale.clone()  # `update` changes it in place
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is not None:
        capture.found_inf.append(found_inf.detach().clone())


class StepControl(Protocol):
    """The autopilot, as a meter calls it: once at each point, in order.

    None of these may raise unless the training is to end.
    """

    def before_backward(self, tensors: Any) -> None:
        """Runs before anything else of a backward pass."""

    def before_closure(self, optimizer: Optimizer) -> None: ...

    def closure_begins(self, optimizer: Optimizer) -> None:
        """Runs before each evaluation of a closure."""

    def evaluated_again(self, optimizer: Optimizer) -> None:
        """Runs after each further evaluation."""

    def before_step(
        self,
        optimizer: Optimizer,
        capture: StepCapture,
        place: str,
        norm: Tensor | None,
        companions: Sequence[Optimizer],
    ) -> None:
        """Runs when the gradients are complete and measured, and not used yet."""

    def swallowed(self, optimizer: Optimizer, capture: StepCapture, place: str) -> None:
        """Runs when a loss scaler threw a step away."""

    def step_ending(self, optimizer: Optimizer) -> bool:
        """Runs right after a step; returns whether it was skipped."""

    def step_over(self, capture_over: bool, is_whole: bool) -> None:
        """Runs after that, when everything is as the script expects. `is_whole`: no other training steps in it."""

    def was_rolled_back(self) -> bool:
        """Return whether it rolled the training back since the last call."""

    def capture_ended(self) -> None: ...


ControlFor: TypeAlias = Callable[[Any], StepControl | None]
"""Returns the autopilot of the owner of a capture: a recording of the session."""


EXPECTED_INTERVALS = 2
"""A track is expected for this many times the steps between its last two captures; later it has ended."""
MAX_EXPECTED_STEPS = 16  # ... and for at most this many steps.
REMEMBERED_CAPTURES = 16  # an optimizer that has not stepped for this many captures is not waited for


class StepCount:
    """Counts the steps of trainings side by side as one: the two halves of a GAN make one step an iteration.

    A track has at most one capture in a step, so that its own steps only rise; a training alone begins a step with each
    capture. The steps are those of the track that steps most often: five captures of a critic for one of its generator
    are five steps.

    A new track joins the current step, because the halves of a GAN are made before either of them steps. A track whose
    optimizer was made after a step is another training, such as the next fold, and begins a step of its own.
    """

    def __init__(self) -> None:
        self._step = 0
        self._current: set[int] = set()  # the tracks that have had a capture in this step
        self._intervals: dict[int, tuple[int, int]] = {}
        """For each track, the step of its last capture, and the number of steps between its last two."""

    @property
    def is_whole(self) -> bool:
        """Whether every track that has not ended had its capture in this step, as both halves of a GAN."""
        if len(self._intervals) == len(self._current):
            return True
        return not any(
            self._step - last <= min(EXPECTED_INTERVALS * interval, MAX_EXPECTED_STEPS)
            for track, (last, interval) in self._intervals.items()
            if track not in self._current
        )

    def begins(self, track: int, is_new: bool = False) -> bool:
        """Count a capture and return whether it begins a step; `is_new`: its optimizer was made after a step."""
        begins = not self._current or track in self._current or (is_new and track not in self._intervals)
        if begins:
            self._step += 1
            self._current = set()
        last, _ = self._intervals.get(track, (0, 0))
        self._current.add(track)
        self._intervals[track] = self._step, self._step - last
        return begins

    def begin_step(self) -> None:
        """Let the next capture begin a step, whatever its track: the training was rolled back."""
        self._current = set()

    def begin_training(self) -> None:
        """Forget the tracks of another recording."""
        self._step, self._current, self._intervals = 0, set(), {}


class StepOrder:
    """Which optimizers step together, by identity, and so when a capture is over."""

    def __init__(self) -> None:
        self._captures_ended = 0
        self._last_stepped: dict[int, dict[int, int]] = {}
        """For each track, the capture of each optimizer's last step."""

    def is_complete(self, track: int, ended: set[int]) -> bool:
        """Return whether every optimizer has ended its step that stepped in recent captures."""
        last_stepped = self._last_stepped.get(track)
        if last_stepped is None:
            return False
        recent = self._captures_ended - REMEMBERED_CAPTURES
        # A plain loop: `all` with a generator takes twice as long, at every step.
        for optimizer, capture in last_stepped.items():
            if capture > recent and optimizer not in ended:
                break
        else:
            return True
        return False

    def capture_ended(self, track: int, stepped: Iterable[int]) -> None:
        """Note which optimizers stepped in the capture that is over."""
        self._captures_ended += 1
        last_stepped = self._last_stepped.get(track)
        if last_stepped is None:
            last_stepped = self._last_stepped[track] = {}
        for optimizer in stepped:
            last_stepped[optimizer] = self._captures_ended

    def stepped_late(self, track: int, optimizer: int) -> None:
        """Note an optimizer that stepped after its capture seemed to be over."""
        self._last_stepped[track][optimizer] = self._captures_ended

    def clear(self) -> None:
        self._last_stepped.clear()
