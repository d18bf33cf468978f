"""Detects gradients that a script discarded between backward passes or never clears, and steps without a backward pass.

``zero_grad()`` has a hook; ``p.grad = None`` and ``p.grad.zero_()`` have none. One parameter of each known optimizer
is checked before and after a backward pass; all of them only where that one's gradient is gone or changed. Where it is
as the step before has left it when the first backward pass of the next one begins, and not zero, the next step gets the
sum of both.

`SinceLastStep` tells the first step of a training without ``backward()`` from a late step of the previous capture.

Guarantees: no gradient is kept alive, changed or waited for. Where gradients go elsewhere in a backward pass (flat
buffers, split parameters) nothing is claimed.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.step.readback import Parcel, value_on_host
from mlflow_stability.probes.step.step_capture import StepCapture
from mlflow_stability.probes.tensors.gradient_norm import gradients_of, is_split, parameters_of, total_norm

MOST = 16
"""So many optimizers are followed, those that came last; a script may make one for every sample."""


SURE_AFTER = 4
"""After so many steps it is known that no backward pass reaches an optimizer."""
KEPT_FOR = 3
"""So many steps in a row with the gradients of the step before are no accident; then their values are read once, for
`p.grad.data.zero_()` leaves no other trace."""


@dataclass(frozen=True, slots=True)
class Left:
    """What the backward passes of an open step have left, right before the next one begins."""

    emptied: tuple[Optimizer, ...]
    """Optimizers none of whose parameters has a gradient other than zero any more."""
    nothing: bool
    """Whether that is so of every optimizer that the backward passes have reached."""
    unsure: bool
    """Whether some gradients cannot be followed, so that nothing is known of them."""


DISCARDED = "discarded gradients"


class Moment(Enum):
    """When the gradients are looked at."""

    STEP_BEGINS = 0
    """Right before the first backward pass of a step."""
    BACKWARD_ENDED = 1
    """Right after each backward pass."""
    STEP_ENDED = 2
    """Right after the step of an optimizer."""


class HeldGradients:
    """One parameter of each optimizer, and its gradient as it was last seen."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.followed: dict[int, _Witness] = {}
        """By the identity of the optimizer."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Follow this optimizer from now on; runs while it has gradients."""
        known = self.followed.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return
        parameter = _with_gradient(optimizer)
        if parameter is None or is_split(parameter):
            return
        self.followed.pop(id(optimizer), None)
        self.followed[id(optimizer)] = _Witness(optimizer, parameter)
        if len(self.followed) > MOST:
            del self.followed[next(iter(self.followed))]

    def note(self, moment: Moment, optimizer: Optimizer | None = None) -> None:
        """Keep how the gradients are now, of one optimizer or of all, and what follows from how they were before."""
        if DISCARDED in self._guard.off:
            return
        try:
            for key, witness in self.followed.items():
                if optimizer is not None and key != id(optimizer):
                    continue
                parameter, before = witness.parameter(), witness.gradient
                gradient = None if parameter is None else parameter.grad
                if gradient is None:
                    touched, witness.gradient = before is not None, None
                else:
                    version = 0 if gradient.is_inference() else gradient._version
                    touched = before is None or before() is not gradient or version != witness.version
                    if touched:
                        witness.gradient, witness.version = TensorWeakRef(gradient), version
                if moment is Moment.STEP_ENDED:
                    witness.kept_for = witness.kept_for + 1 if witness.holds_last else 0
                    witness.holds_last, witness.stepped = False, True
                elif moment is Moment.BACKWARD_ENDED:
                    witness.reached = gradient is not None if touched else witness.reached
                else:
                    witness.reached = False
                    if witness.stepped:
                        witness.holds_last = not touched and gradient is not None
                        if witness.holds_last and witness.kept_for == KEPT_FOR - 1 and witness.values is None:
                            witness.ask_for_values()
        except BaseException as error:
            self._guard.contain(DISCARDED, error)

    def kept_for(self, optimizer: Optimizer) -> int:
        """In how many steps in a row, up to the last, the gradients of the step before were added; 0: not for sure."""
        known = self.followed.get(id(optimizer))
        return 0 if known is None or known.kept_for < KEPT_FOR or not known.is_more_than_zero() else known.kept_for

    def set_aside_discarded(self, capture: StepCapture) -> None:
        """Set aside what the script has discarded since the backward pass before."""
        left = self.left()
        if left.nothing:
            capture.set_aside(len(capture.losses), capture.micro_batches)
            capture.discards.clear()
        else:
            for optimizer in left.emptied:
                capture.discard(optimizer, parameters_of(optimizer))
        if left.unsure:
            capture.unsure = len(capture.losses)

    def left(self) -> Left:
        """Runs right before a further backward pass of the same step."""
        emptied, held, unknown = [], False, False
        for each in self.followed.values():
            each.holds_last = each.holds_last and (each.reached or each.is_as_noted())
            optimizer = each.optimizer()
            if not each.reached or optimizer is None:
                continue
            holds = each.is_as_noted() or each.still_holds(optimizer)
            held, unknown = held or holds is True, unknown or holds is None
            if holds is False:
                emptied.append(optimizer)
                each.reached = each.holds_last = False
        nothing = bool(emptied) and not held and not unknown
        return Left(tuple(emptied), nothing, not held and (unknown or not emptied))

    def reaches(self, optimizer: Optimizer) -> bool | None:
        """Whether backward passes give this optimizer its gradients, and nothing copies them; None: not known yet."""
        known = self.followed.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            return None
        known.steps += 1
        known.ever_reached = known.ever_reached or known.reached
        return known.ever_reached or (None if known.steps < SURE_AFTER else False)


class _Witness:
    """The one parameter of an optimizer."""

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
        """Its gradient when it was noted; memory is used again, so that its address would not tell."""
        self.version = 0
        """How often that had been written to in place."""
        self.reached = False
        """Whether a backward pass of this step has given it a gradient."""
        self.ever_reached = False
        self.steps = 0
        self.stepped = False
        """Whether its gradient was noted at the end of a step."""
        self.holds_last = False
        """Whether the gradients of this step were added to those of the step before."""
        self.kept_for = 0
        """In how many steps in a row they were."""
        self.values: Parcel | None = None
        """The largest value of such a gradient, on its way to the host."""

    def ask_for_values(self) -> None:
        """Have the largest value of its gradient brought to the host."""
        gradient = None if self.gradient is None else self.gradient()
        if gradient is not None and gradient.layout is torch.strided:
            with torch.no_grad():
                self.values = Parcel([gradient.detach().abs().amax().float()])

    def is_more_than_zero(self) -> bool:
        """Whether its gradient was kept, not set to zero by means that leave no trace; False while nobody knows."""
        return self.values is not None and self.values.arrived and float(self.values.opened()[0]) != 0.0

    def is_as_noted(self) -> bool:
        """Whether nobody has touched its gradient since."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or self.gradient is None:
            return gradient is self.gradient
        return self.gradient() is gradient and _version(gradient) == self.version

    def still_holds(self, optimizer: Optimizer) -> bool | None:
        """Whether any gradient of its optimizer is more than zero; None where a device would have to be waited for."""
        parameter = _with_gradient(optimizer)
        if parameter is None:
            return False
        mine = self.parameter()
        if mine is None or mine.grad is None:  # the script has dropped this one alone
            self.parameter = TensorWeakRef(parameter)
            if parameter.grad is not None:
                self.gradient, self.version = TensorWeakRef(parameter.grad), _version(parameter.grad)
            return True
        norm = total_norm(gradients_of(optimizer))
        value = None if norm is None else value_on_host(norm)
        return None if value is None else value != 0


def _with_gradient(optimizer: Optimizer) -> Tensor | None:
    return next((each for each in parameters_of(optimizer) if each.grad is not None), None)


def _version(gradient: Tensor) -> int:
    return 0 if gradient.is_inference() else gradient._version


class SinceLastStep:
    """What has happened since an optimizer ended its step."""

    def __init__(self) -> None:
        self.made: dict[int, weakref.ref[Optimizer]] = {}
        """By identity; one whose object is gone is overwritten when its number is used again."""
        self.nodes = 0
        """How many nodes of graphs there were when the last step or backward pass ended."""
        self.in_backward = False
        """An optimizer may step inside a backward pass, where checkpoints compute anew."""

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Runs when an optimizer was made."""
        self.made[id(optimizer)] = weakref.ref(optimizer)

    def is_new(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer was made since the last step of any."""
        made = self.made.get(id(optimizer)) if self.made else None
        return made is not None and made() is optimizer

    def anything_new(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer is new since then, or anything was computed that has gradients."""
        if self.in_backward:
            return False
        return torch_api.get_sequence_nr() != self.nodes or self.is_new(optimizer)
