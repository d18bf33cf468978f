"""Skip broken steps: a capture with non-finite loss or gradients, or an extreme norm, changes nothing.

Guarantees: weights, buffers, moments and counters are bit-identical before and after a skipped step, and the script
finds its gradients again after it. The verdict on a capture holds for all its optimizers. On the host the flag is read
at once; where all optimizers are fused ones on an accelerator, they read it on the device and nothing waits.

A step is skipped by removing its gradients, which torch's optimizers pass over. Other optimizers get zeros, and are
undone after the step from a copy that is made at broken steps alone. A step that a loss scaler skips is left to it; the
other optimizers of that capture are stopped here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.recovery.skipping.broken_step import broken_flag, takes_found_inf
from mlflow_stability.recovery.skipping.step_undo import (
    BufferUndo,
    PutBack,
    copy_bookkeeping,
    copy_everything,
    copy_weights,
    passes_over_none,
)
from mlflow_stability.recovery.state.host_copy import is_finite

Vote = Callable[[Tensor], Tensor]  # combines the flags of all ranks; called at every check, whatever its result


@dataclass(frozen=True, slots=True)
class Verdict:
    broken: bool | None  # whether its steps are skipped; None: only the device knows, and acts on it
    flag: Tensor | None  # 1.0 on the device where broken; None where nothing was checked
    asked_for: bool = False  # not broken: the script asked to skip it


_SOUND = Verdict(False, None)


@dataclass(slots=True)
class _Hidden:
    gradients: dict[Tensor, Tensor]
    put_back: PutBack
    zeros: dict[Tensor, Tensor] | None = None  # what the step gets instead; None: no gradients

    def hide(self, parameter: Tensor, gradient: Tensor) -> None:
        self.gradients[parameter] = gradient
        if self.zeros is None:
            parameter.grad = None
        else:
            parameter.grad = self.zeros[parameter] = torch.zeros_like(gradient)

    def give_back(self) -> None:
        for parameter, gradient in self.gradients.items():
            if parameter.grad is None or (self.zeros is not None and parameter.grad is self.zeros.get(parameter)):
                parameter.grad = gradient


class StepGuard:
    def __init__(
        self, buffers: BufferUndo | None = None, vote: Vote | None = None, on_device: bool | None = None
    ) -> None:
        self.buffers = buffers
        self.buffers_lost = False  # buffers of the last broken capture could not be restored, and are not finite
        self.awaits_forward = False  # the next forward pass is the first one since a step
        self._vote = vote
        self._on_device = on_device  # whether fused optimizers read the flag themselves; None: on an accelerator
        self._capture: object = None
        self._verdict = _SOUND
        self._looked: set[int] = set()
        self._skip_next = False
        self._hidden: dict[int, _Hidden] = {}
        self._gated: dict[int, tuple[Optimizer, Tensor | None]] = {}
        """Optimizers that hold our flag, with the flag of a loss scaler before it."""
        self._copies: dict[int, PutBack] = {}
        self._moves_first: MutableMapping[Optimizer, bool] = WeakIdKeyDictionary()
        """Whether an optimizer moves its weights before its closure, as SAM does; torch's own do not."""
        self._versions: list[int] = []
        """Autograd versions of the weights before the first closure of an optimizer that is not known yet."""

    @property
    def changes_step(self) -> bool:
        """Whether gradients are hidden, flags set or copies held until the step ends."""
        return bool(self._gated or self._hidden or self._copies)

    def skip_next(self) -> None:
        self._skip_next = True

    def forward_began(self) -> None:
        """Copy the buffers before a forward pass where `awaits_forward`: until then, changes are the script's own."""
        self.awaits_forward = False
        if self.buffers is not None:
            self.buffers.forward_began()

    def before_closure(self, optimizer: Optimizer) -> None:
        """Copy what a step with a closure changes before it can be judged: LBFGS evaluates again and again, SAM moves
        first.
        """
        self._copies = {}  # left over from a step that raised an exception
        if isinstance(optimizer, LBFGS):
            self._copies[id(optimizer)] = copy_everything(optimizer)
        elif not passes_over_none(optimizer):
            moves = self._moves_first.get(optimizer)
            if moves is None:
                self._versions = [weight._version for weight in parameters_of(optimizer)]
            if moves is not False:
                self._copies[id(optimizer)] = copy_weights(optimizer)

    def sound_at_once(
        self,
        optimizer: Optimizer,
        capture: object,
        losses: Sequence[Tensor | float],
        norm: Tensor | None,
        companions: Sequence[Optimizer],
        largest: float | None,
    ) -> bool:
        """Whether this first step of a capture is known to be fine on the host, without waiting, with any loss."""
        if norm is None or not norm.is_cpu or len(companions) > 1 or capture is self._capture:
            return False
        if self._skip_next or self._vote is not None or self._on_device is not None or self._copies:
            return False
        if isinstance(optimizer, LBFGS) or (companions and companions[0] is not optimizer):
            return False
        value = norm.item()
        if not isfinite(value) or (largest is not None and value > largest):
            return False
        for loss in losses:
            if isinstance(loss, Tensor) or not isfinite(loss):
                return False
        if self._hidden or self._gated:
            self._begin(capture)
        self._capture, self._verdict, self._looked = capture, _SOUND, {id(optimizer)}
        if self.buffers is not None:
            self.buffers_lost = False
            if self.buffers.has_buffers:
                self.buffers.keep()
        return True

    def before_step(
        self,
        optimizer: Optimizer,
        capture: object,
        losses: Sequence[Tensor | float] = (),
        norm: Tensor | None = None,
        companions: Iterable[Optimizer] = (),
        largest: float | Tensor | None = None,
    ) -> Verdict:
        """Judge a capture at its first optimizer step, and apply the verdict to this optimizer.

        `capture`: any object that identifies the capture. `norm`: of this optimizer's gradients, if computed; at most
        `largest`. `companions`: the other optimizers that step in the same captures.
        """
        first = capture is not self._capture
        if first:
            self._begin(capture)
        if id(optimizer) not in self._looked:
            everybody = [optimizer, *[companion for companion in companions if companion is not optimizer]]
            self._look(everybody, losses if first else (), norm, largest)
            if first:
                self._settle_buffers()
        if isinstance(optimizer, LBFGS) and id(optimizer) not in self._copies:
            # The optimizer is new in its first closure; before the step it has only computed gradients.
            self._copies = {id(optimizer): copy_everything(optimizer)}
        elif id(optimizer) in self._copies and not isinstance(optimizer, LBFGS) and optimizer not in self._moves_first:
            moved = self._versions != [weight._version for weight in parameters_of(optimizer)]
            self._moves_first[optimizer] = moved
            if not moved:
                del self._copies[id(optimizer)]
        verdict, flag = self._verdict, self._verdict.flag
        if verdict.broken:
            self._hide(optimizer)
        elif verdict.broken is None and flag is not None:
            scaler_flag: Tensor | None = getattr(optimizer, "found_inf", None)
            self._gated[id(optimizer)] = optimizer, scaler_flag
            if scaler_flag is not None:
                flag = torch.maximum(scaler_flag.to(flag.device, non_blocking=True), flag)
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        return verdict

    def evaluated_again(self, optimizer: Optimizer) -> None:
        """Hide the new gradients after a further evaluation of a closure."""
        if id(optimizer) in self._hidden:
            self._hide(optimizer)

    def swallowed(self, optimizer: Optimizer, capture: object) -> Verdict:
        """Stop the other optimizers of a capture after a loss scaler skipped a step."""
        first = capture is not self._capture
        if first:
            self._begin(capture)
        if not self._verdict.broken:
            flag = torch.ones((), dtype=torch.float32, device=parameters_of(optimizer)[0].device)
            self._verdict = Verdict(True, flag if self._vote is None else self._vote(flag))
        if first:
            self._settle_buffers()
        return self._verdict

    def step_ended(self, optimizer: Optimizer) -> bool:
        """Restore what was hidden; True when the step is undone only now, because it left non-finite weights.

        That happens to LBFGS alone, whose later evaluations are not judged.
        """
        self.awaits_forward = self.buffers is not None and self.buffers.has_buffers
        self._take_flag_back(id(optimizer))
        hidden, undo = self._hidden.pop(id(optimizer), None), self._copies.pop(id(optimizer), None)
        if hidden is not None:
            hidden.put_back()
            hidden.give_back()
        if undo is None:
            return False
        undone = hidden is None and isinstance(optimizer, LBFGS) and not all(map(is_finite, parameters_of(optimizer)))
        if hidden is not None or undone:
            undo()
        return undone

    def _begin(self, capture: object) -> None:
        """Begin a capture; drop what a step that raised an exception has left."""
        self._capture, self._verdict = capture, _SOUND
        self._looked.clear()
        self._hidden.clear()
        if self._gated:
            for number in list(self._gated):
                self._take_flag_back(number)

    def _look(
        self,
        optimizers: Sequence[Optimizer],
        losses: Sequence[Tensor | float],
        norm: Tensor | None,
        largest: float | Tensor | None,
    ) -> None:
        """Check the gradients and combine the result with earlier ones of this capture."""
        try:
            flag = broken_flag(losses, norm, optimizers if norm is None else optimizers[1:], largest)
        except Exception:
            if self._vote is not None:
                self._vote(torch.zeros((), dtype=torch.float32))  # the other ranks wait for our vote
            raise
        if flag is None and self._vote is not None:
            flag = torch.zeros((), dtype=torch.float32, device=parameters_of(optimizers[0])[0].device)
        if flag is not None and self._vote is not None:
            # What one process was asked to skip, all skip.
            flag = self._vote(torch.ones_like(flag) if self._skip_next else flag)
        self._looked.update(map(id, optimizers))
        before, asked_for = self._verdict, self._skip_next
        self._skip_next = False
        if flag is None or before.broken or asked_for:
            self._verdict = Verdict(before.broken or asked_for, flag, asked_for or before.asked_for)
        elif self._is_left_to_device(flag, optimizers):
            self._verdict = Verdict(None, flag if before.flag is None else torch.maximum(flag, before.flag))
        else:
            self._verdict = Verdict(flag.item() > 0, flag)

    def _is_left_to_device(self, flag: Tensor, optimizers: Sequence[Optimizer]) -> bool:
        if not (flag.device.type != "cpu" if self._on_device is None else self._on_device):
            return False
        return (self.buffers is None or self.buffers.has_copy) and all(map(takes_found_inf, optimizers))

    def _settle_buffers(self) -> None:
        verdict = self._verdict
        if self.buffers is None:
            return
        self.buffers_lost = False
        if verdict.broken:
            self.buffers_lost = not self.buffers.undo() and self.buffers.has_broken()
        elif verdict.broken is None and verdict.flag is not None:
            self.buffers.settle(verdict.flag)
        else:
            self.buffers.keep()

    def _hide(self, optimizer: Optimizer) -> None:
        hidden = self._hidden.get(id(optimizer))
        if hidden is None:
            hidden = self._hidden[id(optimizer)] = _hidden_of(optimizer)
        for parameter in parameters_of(optimizer):
            if parameter.grad is not None:
                hidden.hide(parameter, parameter.grad)

    def _take_flag_back(self, number: int) -> None:
        optimizer, scaler_flag = self._gated.pop(number, (None, None))
        if optimizer is None:
            return
        if scaler_flag is not None:
            optimizer.found_inf = scaler_flag  # type: ignore[attr-defined]
        elif hasattr(optimizer, "found_inf"):
            del optimizer.found_inf


def _hidden_of(optimizer: Optimizer) -> _Hidden:
    if not passes_over_none(optimizer):
        # Too little memory, or state of a type that cannot be copied or filled: most pass over a missing gradient.
        with contextlib.suppress(Exception):
            put_back = copy_everything(optimizer)
            put_back()  # changes nothing; what cannot be put back is known before the step
            return _Hidden({}, put_back, {})
    return _Hidden({}, copy_bookkeeping(optimizer))
