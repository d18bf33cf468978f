"""What hooks record of one capture: a backward phase and the optimizer steps that use its gradients; and its reading.

Scalars stay on their device until they are read; they are copies where the script or torch may change the original in
place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, isfinite
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.parameters.layer_statistics import Table
from mlflow_stability.probes.parameters.per_optimizer import root_of_squares
from mlflow_stability.probes.step.readback import Block, value_on_host
from mlflow_stability.vocabulary.measured.signal import LAYOUTS, UNCLIPPED, Signal, shared_layout
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signal_types, signals

MAX_LOSSES = 1024  # losses of one capture; of more only the sum is kept


@dataclass(slots=True)
class Clip:
    """A norm that the script itself computed over gradients, before it clipped them."""

    norm: Tensor | float
    order: float  # the p of the norm; only 2 can be ``grad_norm``
    gradients: frozenset[int]  # identities of the gradients
    scale: Tensor | None  # the loss scale that the gradients still carried


@dataclass(frozen=True, slots=True)
class Discarded:
    """Gradients that were set to zero or None: an optimizer of these parameters does not follow the earlier losses."""

    parameters: frozenset[int]  # identities of the parameters
    losses: int  # number of losses before
    micro_batches: int


class StepCapture:
    """One capture. Tensors in it are scalars on their device."""

    # One is created at every step: no dataclass, whose `__init__` would set each of these.
    micro_batches = replays = 0  # backward passes, and replays of CUDA graphs
    unsure = 0  # number of first losses whose gradients may have been discarded
    discarded = 0  # number of backward passes whose gradients were
    squares_here: Tensor | None = None
    """This process's share of the squared gradient norm of the first optimizer, where a model is split."""
    clipped_by_stage = False  # whether the norm of the clipping, that of one pipeline stage, is in `squares_here`
    loss_here: Tensor | float | None = None  # the loss of this process, where it has the last stage of a pipeline
    loss_of_all: float | None = None  # the loss of all processes of the pipeline
    norm_of_all: float | None = None  # the gradient norm of a split model over all processes
    track = -1  # its training, of several in this process: the halves of a GAN alternate
    place = ""  # the place of its loss and norms
    begins_step = True
    """Whether it begins a step; else it belongs to the step of the capture of another track before it."""
    loss_scale: Tensor | None = None
    owner: Any = None  # the recording of the capture
    newest: tuple[weakref.ref[Tensor], int] | None = None
    """The loss of the newest backward pass, and its version counter."""
    scaler: Any = None  # the loss scaler that scaled a loss of this capture
    unscaled = False  # whether that scaler has already divided the gradients by its scale
    engine: Any = None  # the engine that has copied the gradients, clips them itself and knows their norm
    copied = False
    """Whether the optimizer's gradients are copies, or come from an engine that does not return their norm: they may
    have been clipped where no hook sees it."""
    blocks: Sequence[Block] = ()  # measurements of the probes that were due
    tables: Sequence[Table] = ()  # distributions of gradients and weights in each layer, where due

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
        self.discarded += micro_batches

    def condense(self) -> None:
        """Replace many losses by their sum: after this many, a step is unlikely."""
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

    __slots__ = ("engine", "group_place", "is_settled", "optimizer", "place", "rate_places", "track")

    def __init__(
        self, optimizer: Optimizer, track: int, place: str, group_place: Callable[[Optimizer, int], str]
    ) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.track = track
        self.place = place  # the place of the losses and norms of its track
        self.rate_places: list[str] = []  # the place of each group's learning rate
        self.is_settled = False  # whether backward passes are known to reach it, and the engine that steps it is known
        self.engine: weakref.ref[Any] | None = None
        self.group_place = group_place


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
        known_optimizer.rate_places = [known_optimizer.group_place(optimizer, at) for at in range(len(groups))]
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

    def step_over(self, capture_over: bool, is_whole: bool, scan: AbstractContextManager[None]) -> None:
        """Runs after that, when everything is as the script expects; all searches for objects are made within `scan`.

        `is_whole`: no other training steps in it.
        """

    def was_rolled_back(self) -> bool:
        """Return whether it rolled the training back since the last call."""

    def capture_ended(self) -> None: ...


ControlFor: TypeAlias = Callable[[Any], StepControl | None]
"""Returns the autopilot of the owner of a capture: a recording of the session."""


SIGNALS = signals(
    SignalType(
        "loss",
        "sum of what was passed to `backward` in the step, before a `GradScaler` scales it",
        topic="loss_statistics",
        exported="llm_training_loss",
    ),
    SignalType("micro_batches", "calls of `backward` for the step", topic="optimizer", exported="llm_micro_batches"),
    SignalType(
        "graph_replays",
        "replays of CUDA graphs in the step: what they compute runs no hook, its losses are not recorded",
        topic="timing",
        left_out="zero",
    ),
    SignalType(
        "grad_norm",
        "L2 norm of all gradients, before clipping; after clipping where the recording notes so",
        topic="gradients",
        exported="llm_gradient_norm",
        by_layer=True,
        combined="norm",
    ),
    SignalType(
        "grad_norm_clipped",
        "L2 norm of all gradients, after clipping; only where the script clips",
        topic="gradients",
        exported="llm_gradient_norm_clipped",
    ),
    SignalType(
        "learning_rate",
        "learning rate of the first parameter group, as the script set it; steps that are reduced after a rollback "
        "have `learning_rate_used` beside it; further groups are `learning_rate@group_1`, …",
        topic="optimizer",
        exported="llm_learning_rate",
    ),
    SignalType("loss_scale", "scale of the `GradScaler`", topic="optimizer", exported="llm_loss_scale"),
    SignalType(
        "skipped_steps",
        "steps that were skipped so far",
        topic="optimizer",
        unit="{step}",
        exported="llm_skipped_steps_total",
        counter=True,
    ),
    SignalType("step_time", "time from the end of one step to the end of the next", topic="timing", unit="s"),
    interval="every step",
)

COPIED = "as the optimizer was given it: clipping by an engine, or of copies of the gradients, is not detected"


class ProbeReading(NamedTuple):
    """The signals of one capture and their values, in the order of their detection."""

    signals: tuple[Signal, ...]  # the same tuple object as long as the same signals are measured
    values: tuple[float, ...]
    time: float
    norm_basis: str  # ``before clipping``, ``after clipping``, `UNCLIPPED` or `COPIED`; empty without a gradient norm
    tables: tuple[tuple[Table, Sequence[float]], ...] = ()
    """Distributions of gradients and weights in each layer, where measured, and their numbers."""
    discarded: tuple[float, ...] = ()  # non-finite losses whose gradients the script discarded; they belong to no step
    begins_step: bool = True
    """Whether this capture begins a step; else it belongs to the step before, as a GAN's second half."""


named = lru_cache(maxsize=4096)(Signal)
_TYPES = signal_types().values()
_OF_STEPS_TAKEN = frozenset(signal.quantity for signal in _TYPES if signal.of_steps_taken)
_UNLESS_ZERO = frozenset(signal.quantity for signal in _TYPES if signal.left_out == "zero")
# Weights that are all zero have no update ratio, and the output of a pooling layer has no shape: NaN means "not
# applicable" here.
_UNLESS_NAN = frozenset(signal.quantity for signal in _TYPES if signal.left_out == "nan")


def scalars_of(capture: StepCapture) -> list[Tensor | float]:
    """Return the scalars to copy to the host, in the order of `reading_of`."""
    scalars: list[Tensor | float] = [*capture.losses, *capture.discarded_losses, *capture.norms]
    for clip in capture.clips:
        scalars += (clip.norm, 1.0 if clip.scale is None else clip.scale)
    scalars += capture.learning_rates.values()
    scalars += capture.found_inf
    if capture.loss_scale is not None:
        scalars.append(capture.loss_scale)
    return scalars


def rows_of(capture: StepCapture) -> list[Tensor]:
    """Return the rows that probes left on the device, in the order of `reading_of`."""
    rows = [block.values for block in capture.blocks if isinstance(block.values, Tensor)]
    return rows + [table.values for table in capture.tables]


def reading_of(
    capture: StepCapture,
    values: Sequence[float],
    rows: Sequence[Sequence[float]],
    place: str,
    step_time: float | None,
    when: float,
    skips: dict[int, int],
) -> ProbeReading:
    """Return the reading, from the values of `scalars_of` and `rows_of`; `skips`: skipped steps by track, updated."""
    at = len(capture.losses)
    losses, discarded = values[:at], list[float]()
    if capture.discarded_losses:
        end = at + len(capture.discarded_losses)
        discarded, at = [loss for loss in values[at:end] if not isfinite(loss)], end
    end = at + len(capture.norms)
    norms, at = values[at:end], end
    end = at + 2 * len(capture.clips)
    clips, at = values[at:end], end
    end = at + len(capture.learning_rates)
    learning_rates, at = values[at:end], end
    end = at + len(capture.found_inf)
    found_inf = values[at:end]
    signals: list[Signal] = []
    readings: list[float] = []
    if not norms and capture.norm_of_all is not None:
        norms = (capture.norm_of_all,)
    elif not norms and len(clips) == 2 and capture.gradients:  # in a split model only the script took a norm
        norm, limit = clips[0] / clips[1], capture.limits.get("max_norm")
        norms = (norm if limit is None else norm * min(1.0, limit / (norm + 1e-6)),)  # as `clip_grad_norm_` does

    # Skips come first: detectors must know that a scaler skipped the step before they see its infinite gradient.
    not_taken = bool(found_inf) and any(flag > 0 for flag in found_inf)
    skipped = skips.get(capture.track, 0) + not_taken
    skips[capture.track] = skipped
    if capture.loss_scale is not None or skipped:
        signals.append(named("skipped_steps", place))
        readings.append(float(skipped))
    micro_batches = capture.micro_batches
    # A NaN loss gives NaN gradients: where gradients are finite, they are not its own.
    if capture.unsure and norms and all(map(isfinite, norms)):
        nonfinite = [loss for loss in losses[: capture.unsure] if not isfinite(loss)]
        losses = [loss for loss in losses[: capture.unsure] if isfinite(loss)] + list(losses[capture.unsure :])
        micro_batches -= len(nonfinite)
        discarded += nonfinite
    if losses:
        signals += (named("loss", place), named("micro_batches", place))
        readings.append(losses[0] if len(losses) == 1 else fsum(losses) if all(map(isfinite, losses)) else sum(losses))
        readings.append(float(micro_batches))
    if capture.replays:
        signals.append(named("graph_replays", place))
        readings.append(float(capture.replays))
    basis = ""
    if norms:
        before_step = norms[0] if len(norms) == 1 else root_of_squares(norms)
        signals.append(named("grad_norm", place))
        if clips:
            clip = capture.clips[0]
            if len(clips) == 2:  # a single clip, as usual
                before = clips[0] / clips[1] if clip.order == 2.0 and clip.gradients >= capture.gradients else None
            else:
                before = norm_before_clipping(capture, clips)
            basis = "after clipping" if before is None else "before clipping"
            signals.append(named("grad_norm_clipped", place))
            readings += (before_step if before is None else before, before_step)
        else:
            basis = COPIED if capture.copied else "before clipping" if capture.clipped_by_stage else UNCLIPPED
            readings.append(before_step)
    for where in capture.learning_rates:
        signals.append(named("learning_rate", where))
    readings += learning_rates
    if capture.loss_scale is not None:
        signals.append(named("loss_scale", place))
        readings.append(values[end])
    if step_time is not None:
        signals.append(named("step_time", place))
        readings.append(step_time)
    if capture.blocks:
        _add_blocks(capture, rows, not_taken, signals, readings)
    tables = tuple(zip(capture.tables, rows[len(rows) - len(capture.tables) :], strict=True)) if capture.tables else ()
    layout = LAYOUTS.get(tuple(map(id, signals))) or shared_layout(signals)
    return ProbeReading(layout, tuple(readings), when, basis, tables, tuple(discarded), capture.begins_step)


def _add_blocks(
    capture: StepCapture, rows: Sequence[Sequence[float]], not_taken: bool, signals: list[Signal], readings: list[float]
) -> None:
    """Add the measurements of probes, without those that a skipped step does not have."""
    arrived = iter(rows)
    for block in capture.blocks:
        values: Sequence[float] = next(arrived) if isinstance(block.values, Tensor) else block.values
        if block.on_host is not None:
            values = block.on_host(values)
        for signal, value in zip(block.signals, values, strict=True):
            quantity = signal.quantity
            left_out = (
                (not_taken and quantity in _OF_STEPS_TAKEN)
                or (value == 0 and quantity in _UNLESS_ZERO)
                or (value != value and quantity in _UNLESS_NAN)
            )
            if not left_out:
                signals.append(signal)
                readings.append(value)


def norm_before_clipping(capture: StepCapture, numbers: Sequence[float]) -> float | None:
    """Return the script's own norms combined, or None unless they are of order 2 and cover all gradients of the step.

    `numbers` are for each clip the norm, and the loss scale at that time.
    """
    covered: set[int] = set()
    parts = []
    for at, clip in enumerate(capture.clips):
        if clip.order == 2.0 and covered.isdisjoint(clip.gradients):
            covered |= clip.gradients
            parts.append(numbers[2 * at] / numbers[2 * at + 1])
    return root_of_squares(parts) if parts and covered >= capture.gradients else None
