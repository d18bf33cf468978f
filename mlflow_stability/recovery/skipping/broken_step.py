"""Whether a step is broken: a flag on the device, and the largest normal gradient norm.

A finite gradient whose norm is too large for its type counts as broken: its square would ruin second moments. A norm
far above all that the training has shown since its first step or the last rollback is broken, too: a corrupted batch.
A bad batch shows in its loss as well, so where the loss is no larger than before, the norm must be ten times as large:
a single large norm is common in healthy trainings. Extreme norms that keep coming are the training's own, and are let
through. A norm of exactly zero (no reward, no violated margin) is ignored.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import gradients_of, local_part, of_one_kind, total_norm


def broken_flag(
    losses: Sequence[Tensor | float],
    norm: Tensor | None,
    optimizers: Sequence[Optimizer],
    largest: float | Tensor | None = None,
) -> Tensor | None:
    """Return 1.0 on the device where anything is non-finite, else 0.0; None without anything to check.

    `norm` must not exceed `largest`; the norms of `optimizers` are computed here.
    """
    with torch.no_grad():
        scalars = (*losses, *([] if norm is None else [norm]))
        # Of a number only matters whether it is finite, which no type of a device may change.
        asked = [
            scalar.detach().reshape(()) if isinstance(scalar, Tensor) else torch.tensor(0 * scalar)
            for scalar in scalars
        ]
        for optimizer in optimizers:
            split_norm = total_norm([local_part(gradient) for gradient in gradients_of(optimizer)])
            if split_norm is not None:
                asked.append(split_norm)
        if not asked:
            return None
        if all(scalar.is_cpu for scalar in asked):  # no wait for values on the host
            values = [scalar.item() for scalar in asked]
            absurd = norm is not None and largest is not None and values[len(losses)] > float(largest)
            return torch.tensor(float(absurd or not all(map(math.isfinite, values))), dtype=torch.float32)
        # Gradients say on which device it is wanted; a loss may have been moved to the host.
        row = torch.stack(of_one_kind(asked, asked[-1].device))
        sound = torch.isfinite(row).all()
        if norm is not None and largest is not None:
            if isinstance(largest, Tensor):
                largest = largest.to(row.device, row.dtype, non_blocking=True)
            sound = sound & (row[len(losses)] <= largest)
        return 1.0 - sound.to(torch.float32)


def takes_found_inf(optimizer: Optimizer) -> bool:
    """Whether this optimizer reads a flag on the device and skips its step, so that nothing waits for it.

    Fused optimizers do. Not in their first step: fused SGD then makes buffers that it fills only if it does something.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    for group in optimizer.param_groups:
        if not group.get("fused") or not type(optimizer).__module__.startswith("torch.optim"):
            return False
        if any(
            parameter.grad is not None and not _has_state(optimizer, group, parameter) for parameter in group["params"]
        ):
            return False
    return True


def _has_state(optimizer: Optimizer, group: dict[str, object], parameter: Tensor) -> bool:
    state = optimizer.state.get(parameter) or {}
    if isinstance(optimizer, torch.optim.SGD):
        return not group.get("momentum") or state.get("momentum_buffer") is not None
    return bool(state)


NORMS_REMEMBERED = 256  # number of gradient norms whose median is the usual one
NORMS_NEEDED = 50  # with fewer norms no step is skipped for its norm
TIMES_LARGEST = 10.0
"""Multiple of the largest norm ever taken, and of the largest loss: lets heavy tails through, and the one hard sample
of a training that has nearly learnt the others."""
TIMES_AT_NORMAL_LOSS = 10.0  # factor of both limits where the loss is normal
MAX_SKIPPED = 3  # number of extreme norms that are skipped before the next of their size is accepted
FORGET_AFTER_STEPS = 1000
"""Steps without an extreme norm after which those before are forgotten. A rare task or reward comes more often; a
corrupted batch that comes less often is always skipped."""


class GradientLimit:
    def __init__(self, times: float | None) -> None:
        self._times = times
        self._norms: deque[float] = deque()
        self._by_size: list[float] = []  # sorted: to sort them at each step would take longer than all else here
        self._largest = 0.0  # largest norm of a step that was taken
        self._largest_loss = 0.0  # largest absolute loss
        self._usual = math.inf  # the limit without regard to extreme norms
        self.largest: float | None = None  # the limit for an extreme loss; None: no limit
        self._absurd: deque[float] = deque(maxlen=MAX_SKIPPED)  # the last norms above it
        self._since = 0  # steps since the last of them

    def largest_for(self, losses: Sequence[Tensor | float]) -> float | Tensor | None:
        """Return the limit for these losses, without waiting for their device; None: no limit."""
        largest = self.largest
        if largest is None:
            return None
        far = next((loss for loss in losses if isinstance(loss, Tensor)), None)
        if far is None:
            absurd = TIMES_LARGEST * self._largest_loss
            return largest if any(abs(float(loss)) > absurd for loss in losses) else TIMES_AT_NORMAL_LOSS * largest
        sizes = torch.stack([torch.as_tensor(loss).detach().to(far).abs() for loss in losses])
        limits = sizes.new_tensor([largest, TIMES_AT_NORMAL_LOSS * largest])
        is_absurd: Tensor = torch.gt(sizes.max(), TIMES_LARGEST * self._largest_loss)
        return torch.where(is_absurd, limits[0], limits[1])

    def step(self, norm: float, *, skipped: bool, loss: float = math.nan) -> None:
        is_absurd = abs(loss) > TIMES_LARGEST * self._largest_loss
        usual = self._usual if is_absurd else TIMES_AT_NORMAL_LOSS * self._usual
        if not skipped and math.isfinite(loss):
            self._largest_loss = max(self._largest_loss, abs(loss))
        if norm == 0 or not math.isfinite(norm):
            return
        if norm > usual:
            self._absurd.append(norm)
            self._since = 0
        elif self._absurd:
            self._since += 1
            if self._since >= FORGET_AFTER_STEPS:
                self._absurd.clear()
        if not skipped:
            self._largest = max(self._largest, norm)
            self._norms.append(norm)
            insort(self._by_size, norm)
            if len(self._norms) > NORMS_REMEMBERED:
                del self._by_size[bisect_left(self._by_size, self._norms.popleft())]
        norms = self._by_size
        if self._times is None or len(norms) < NORMS_NEEDED:
            return
        median = (norms[(len(norms) - 1) // 2] + norms[len(norms) // 2]) / 2
        self._usual = self.largest = max(self._times * median, TIMES_LARGEST * self._largest)
        if len(self._absurd) == MAX_SKIPPED:
            self.largest = max(self._usual, TIMES_LARGEST * min(self._absurd))

    def forget(self) -> None:
        self._norms.clear()
        self._by_size.clear()
        self._absurd.clear()
        self._usual, self._largest, self._largest_loss, self._since = math.inf, 0.0, 0.0, 0
        self.largest = None
