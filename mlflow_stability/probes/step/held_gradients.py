"""Detect gradients that a script discards between backward passes or never clears, and steps without a backward pass.

``zero_grad()`` has a hook; ``p.grad = None`` and ``p.grad.zero_()`` have none. One parameter of each optimizer is
checked before and after a backward pass; all of them only where its gradient is gone or changed. If its gradient is
unchanged since the last step when the first backward pass of the next one begins, and not zero, the next step gets the
sum of both.

No gradient is kept alive, changed or waited for. Where gradients go elsewhere in a backward pass (flat buffers, split
parameters) nothing is reported.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from mlflow_stability.probes.gradient_norm import gradients_of, is_split, parameters_of, total_norm
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.step.readback import Parcel, value_on_host
from mlflow_stability.probes.step.step_capture import StepCapture

MAX_FOLLOWED = 16  # optimizers that are followed, the newest ones; a script may make one for every sample
MIN_UNREACHED_STEPS = 4
"""After this many steps without gradients from a backward pass, none reaches an optimizer."""
MIN_KEPT_STEPS = 3
"""Steps in a row with the gradients of the step before that are no accident; then their values are read once, because
`p.grad.data.zero_()` leaves no other trace."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """The gradients of the backward passes of an open step, right before the next pass begins."""

    emptied: tuple[Optimizer, ...]
    """Optimizers that have no gradients, or only zeros."""
    nothing: bool
    """Whether these are all optimizers that the backward passes have reached."""
    unsure: bool
    """Whether some gradients cannot be followed."""


DISCARDED = "discarded gradients"


class Moment(Enum):
    STEP_BEGINS = 0
    """Right before the first backward pass of a step."""
    BACKWARD_ENDED = 1
    """Right after each backward pass."""
    STEP_ENDED = 2
    """Right after the step of an optimizer."""


class HeldGradients:
    """One parameter of each optimizer, and its gradient at the last check."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.followed: dict[int, _FollowedParameter] = {}  # by the identity of the optimizer

    def before_step(self, optimizer: Optimizer) -> None:
        """Follow this optimizer from now on; runs while it has gradients."""
        entry = self.followed.get(id(optimizer))
        if entry is not None and entry.optimizer() is optimizer:
            return
        parameter = _with_gradient(optimizer)
        if parameter is None or is_split(parameter):
            return
        self.followed.pop(id(optimizer), None)
        self.followed[id(optimizer)] = _FollowedParameter(optimizer, parameter)
        if len(self.followed) > MAX_FOLLOWED:
            del self.followed[next(iter(self.followed))]

    def note(self, moment: Moment, optimizer: Optimizer | None = None) -> None:
        """Compare the gradients of one optimizer, or of all, with the last check, and keep their state."""
        if DISCARDED in self._guard.off:
            return
        try:
            for key, entry in self.followed.items():
                if optimizer is not None and key != id(optimizer):
                    continue
                parameter, before = entry.parameter(), entry.gradient
                gradient = None if parameter is None else parameter.grad
                if gradient is None:
                    touched, entry.gradient = before is not None, None
                else:
                    version = 0 if gradient.is_inference() else gradient._version
                    touched = before is None or before() is not gradient or version != entry.version
                    if touched:
                        entry.gradient, entry.version = TensorWeakRef(gradient), version
                if moment is Moment.STEP_ENDED:
                    entry.kept_for = entry.kept_for + 1 if entry.holds_last else 0
                    entry.holds_last, entry.stepped = False, True
                elif moment is Moment.BACKWARD_ENDED:
                    entry.reached = gradient is not None if touched else entry.reached
                else:
                    entry.reached = False
                    if entry.stepped:
                        entry.holds_last = not touched and gradient is not None
                        if entry.holds_last and entry.kept_for == MIN_KEPT_STEPS - 1 and entry.values is None:
                            entry.ask_for_values()
        except BaseException as error:
            self._guard.contain(DISCARDED, error)

    def kept_for(self, optimizer: Optimizer) -> int:
        """Return in how many steps in a row the gradients of the step before were added; 0 while that is not
        certain.
        """
        entry = self.followed.get(id(optimizer))
        return 0 if entry is None or entry.kept_for < MIN_KEPT_STEPS or not entry.is_not_zero() else entry.kept_for

    def set_aside_discarded(self, capture: StepCapture) -> None:
        """Set aside losses whose gradients the script has discarded since the backward pass before."""
        remaining = self.remaining()
        if remaining.nothing:
            capture.set_aside(len(capture.losses), capture.micro_batches)
            capture.discards.clear()
        else:
            for optimizer in remaining.emptied:
                capture.discard(optimizer, parameters_of(optimizer))
        if remaining.unsure:
            capture.unsure = len(capture.losses)

    def remaining(self) -> Remaining:
        """Check all gradients right before a further backward pass of the same step."""
        emptied, held, unknown = [], False, False
        for entry in self.followed.values():
            entry.holds_last = entry.holds_last and (entry.reached or entry.is_unchanged())
            optimizer = entry.optimizer()
            if not entry.reached or optimizer is None:
                continue
            holds = entry.is_unchanged() or entry.still_holds(optimizer)
            held, unknown = held or holds is True, unknown or holds is None
            if holds is False:
                emptied.append(optimizer)
                entry.reached = entry.holds_last = False
        nothing = bool(emptied) and not held and not unknown
        return Remaining(tuple(emptied), nothing, not held and (unknown or not emptied))

    def reaches(self, optimizer: Optimizer) -> bool | None:
        """Return whether backward passes give this optimizer its gradients, uncopied; None while that is unknown."""
        entry = self.followed.get(id(optimizer))
        if entry is None or entry.optimizer() is not optimizer:
            return None
        entry.steps += 1
        entry.ever_reached = entry.ever_reached or entry.reached
        return entry.ever_reached or (None if entry.steps < MIN_UNREACHED_STEPS else False)


class _FollowedParameter:
    __slots__ = (
        "ever_reached",
        "gradient",
        "holds_last",
        "kept_for",
        "optimizer",
        "parameter",
        "reached",
        "stepped",
        "steps",
        "values",
        "version",
    )

    def __init__(self, optimizer: Optimizer, parameter: Tensor) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.parameter = TensorWeakRef(parameter)
        self.gradient: TensorWeakRef | None = None
        """Its gradient at the last check; an address would not do, as memory is reused."""
        self.version = 0  # the version of that gradient: the number of in-place writes
        self.reached = False  # whether a backward pass of this step has given it a gradient
        self.ever_reached = False
        self.steps = 0
        self.stepped = False  # whether its gradient was checked at the end of a step
        self.holds_last = False  # whether the gradients of this step were added to those of the step before
        self.kept_for = 0  # the number of such steps in a row
        self.values: Parcel | None = None  # the largest value of such a gradient, on its way to the host

    def ask_for_values(self) -> None:
        """Start copying the largest value of its gradient to the host."""
        gradient = None if self.gradient is None else self.gradient()
        if gradient is not None and gradient.layout is torch.strided:
            with torch.no_grad():
                self.values = Parcel([gradient.detach().abs().amax().float()])

    def is_not_zero(self) -> bool:
        """Return whether its gradient was kept, not set to zero without a trace; False while that is unknown."""
        return self.values is not None and self.values.arrived and float(self.values.opened()[0]) != 0.0

    def is_unchanged(self) -> bool:
        """Return whether its gradient is as it was at the last check."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or self.gradient is None:
            return gradient is self.gradient
        return self.gradient() is gradient and _version(gradient) == self.version

    def still_holds(self, optimizer: Optimizer) -> bool | None:
        """Return whether any gradient of its optimizer is not zero; None where they are on a device."""
        parameter = _with_gradient(optimizer)
        if parameter is None:
            return False
        followed = self.parameter()
        if followed is None or followed.grad is None:  # the script dropped only this gradient
            self.parameter = TensorWeakRef(parameter)
            if parameter.grad is not None:
                self.gradient, self.version = TensorWeakRef(parameter.grad), _version(parameter.grad)
            return True
        norm = total_norm(gradients_of(optimizer))
        value = None if norm is None else value_on_host(norm)
        return None if value is None else value != 0


def _with_gradient(optimizer: Optimizer) -> Tensor | None:
    return next((parameter for parameter in parameters_of(optimizer) if parameter.grad is not None), None)


def _version(gradient: Tensor) -> int:
    return 0 if gradient.is_inference() else gradient._version


class SinceLastStep:
    """Tells the first step of a training without ``backward()`` from a late step of the previous capture."""

    def __init__(self) -> None:
        self.made: dict[int, weakref.ref[Optimizer]] = {}  # new optimizers by identity
        self.nodes = 0  # number of autograd nodes when the last step or backward pass ended
        self.in_backward = False
        """An optimizer may step inside a backward pass, where checkpoints compute again."""

    def optimizer_made(self, optimizer: Optimizer) -> None:
        # One for gradients that are there joins the step in which they were computed: Pyro makes an optimizer for each
        # parameter between the steps of others.
        if _with_gradient(optimizer) is None:
            self.made[id(optimizer)] = weakref.ref(optimizer)

    def is_new(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer was made since the last step of any, before its gradients."""
        made = self.made.get(id(optimizer)) if self.made else None
        return made is not None and made() is optimizer

    def anything_new(self, optimizer: Optimizer) -> bool:
        """Return whether this optimizer is new, or anything with gradients was computed since the last step."""
        if self.in_backward:
            return False
        return torch_api.get_sequence_nr() != self.nodes or self.is_new(optimizer)
