"""Smaller steps after a rollback: reduced learning rates, tighter clipping, reset momentum.

In: factor and length, each optimizer before and after its step, gradient norms of healthy steps. Out: a learning rate
that is multiplied before a step and restored after it; gradients of at most a multiple of their usual norm; first
moments of zero. Guarantees: schedulers and script see only their own learning rates, bit-identical with and without
easing; gradients within the threshold, or non-finite, stay bit-identical; tensors keep their addresses and autograd
versions; nothing waits for the device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.objects import state_of
from mlflow_stability.recovery.skipping import local_part

Rate = float | Tensor


@dataclass(frozen=True, slots=True)
class EasingPlan:
    """How a training is eased back in."""

    start: int
    """The first step after going back."""
    factor: float = 0.5
    """The learning rate then, as a share of the script's own."""
    steps: int = 200
    """Over how many steps it comes back."""
    lasting: float = 1.0
    """What it comes back to, as a share of the script's own."""
    held: Mapping[int, tuple[float | None, ...]] = field(default_factory=dict)
    """For each optimizer, by identity, what the learning rate of each group is held down to; None: that one is free."""
    hold_doubles_in: int = 500
    """In how many steps what is held down doubles."""
    linear: bool = False
    """Whether half a cosine is the share itself, as SPAM warms up (arXiv 2501.06842); else its logarithm."""
    clips: bool = True
    """Whether gradients may be clipped meanwhile."""

    def share(self, step: int) -> float:
        """The share of the learning rate at a step: from `factor` to 1, smoothly at both ends."""
        done = (step - self.start) / self.steps
        if done >= 1:
            return 1.0
        left = (1 + math.cos(math.pi * max(done, 0.0))) / 2
        return 1 - (1 - self.factor) * left if self.linear else math.pow(self.factor, left)

    def first_rate(self, optimizer: Optimizer) -> float:
        """The learning rate of the optimizer's first group in the first step; NaN where only a device knows it."""
        rate, held = (rates_of(optimizer) or (math.nan,))[0], (self.held.get(id(optimizer)) or (None,))[0]
        asked = rate if held is None else min(rate, held / self.lasting)
        return asked * self.lasting * self.share(self.start)

    def ceiling(self, held: float, step: int) -> float:
        """What a rate that is held down may be at a step."""
        return held * math.pow(2.0, min(max(step - self.start, 0) / self.hold_doubles_in, 64.0))


@dataclass(slots=True)
class _Written:
    """What we put into a group, and what was there."""

    ours: Rate
    theirs: Rate
    """The script's own object; of a tensor a copy of its value."""


class Easing:
    """One easing, from going back until the script's own learning rates are reached again."""

    def __init__(self, plan: EasingPlan) -> None:
        self.plan = plan
        self._held = {number: list(rates) for number, rates in plan.held.items()}
        self._written: MutableMapping[Optimizer, dict[int, _Written]] = WeakIdKeyDictionary()

    @property
    def held(self) -> dict[int, tuple[float | None, ...]]:
        """What is still held down, as `EasingPlan.held`."""
        return {number: tuple(rates) for number, rates in self._held.items()}

    def is_over(self, step: int) -> bool:
        """Whether nothing is left to ease."""
        lasts = self.plan.lasting < 1 or any(rate is not None for rates in self._held.values() for rate in rates)
        return step >= self.plan.start + self.plan.steps and not lasts

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        """Make this optimizer's next step smaller."""
        self.step_ended(optimizer)  # where a step ended in an exception, ours is still there
        share, lasting = self.plan.share(step), self.plan.lasting
        held = self._held.get(id(optimizer))
        written: dict[int, _Written] = {}
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if rate is None:
                continue
            limit = held[number] if held is not None and number < len(held) else None
            if limit is not None:
                limit = self.plan.ceiling(limit, step)
                if float(rate) * lasting <= limit:  # held are only rates that lie on the host
                    # The script asks for no more than is allowed: the jump is over.
                    held[number] = limit = None  # type: ignore[index]
            if share * lasting >= 1 and limit is None:
                continue
            # The limit is one on what lasts: it was taken from rates that were eased already.
            written[number] = _write(group, rate, share * lasting, None if limit is None else limit / lasting)
        if written:
            self._written[optimizer] = written

    def step_ended(self, optimizer: Optimizer) -> None:
        """Put back what the script had written."""
        written = self._written.pop(optimizer, {})
        for number, each in written.items():
            if number >= len(optimizer.param_groups):
                continue
            group = optimizer.param_groups[number]
            if isinstance(each.ours, Tensor) and isinstance(each.theirs, Tensor):
                each.ours.data.copy_(each.theirs)  # the tensor is the script's own, and keeps its address
            elif group.get("lr") is each.ours:  # else the optimizer has written one of its own
                group["lr"] = each.theirs


def _write(group: dict[str, object], rate: Rate, share: float, limit: float | None) -> _Written:
    if isinstance(rate, Tensor):
        theirs = rate.detach().clone()
        eased = theirs if limit is None else theirs.clamp(max=limit)
        rate.data.copy_(eased * share)
        return _Written(rate, theirs)
    ours = (rate if limit is None else min(rate, limit)) * share
    group["lr"] = ours
    return _Written(ours, rate)


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """The learning rate of each group as it is now; NaN where it lies on a device, or there is none.

    Between `before_step` and the end of a step these are the rates that the step is really taken at.
    """
    rates = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        rates.append(math.nan if rate is None or not getattr(rate, "is_cpu", True) else float(rate))
    return tuple(rates)


def held_rates(
    optimizer: Optimizer, before: tuple[float, ...], times: float, lasting: float = 1.0
) -> tuple[float | None, ...]:
    """What to hold the groups' learning rates down to: those of a restored state, where they have jumped since.

    `before` are the rates that the restored state was really trained at, as `rates_of` told them; `times` says from
    which multiple of them on the script's own is a jump, of which only the share `lasting` is used.
    """
    pairs = zip(rates_of(optimizer), before, strict=False)
    return tuple(then if then > 0 and now * lasting > times * then else None for now, then in pairs)


def clip_in_place(gradients: Sequence[Tensor], norm: Tensor, largest: Tensor | float) -> Tensor:
    """Shorten gradients to a norm of at most `largest`; gives what they were multiplied by, as it lies on the device.

    `norm` is what the optimizer sees: where gradients still carry a loss scale, the norm without it.
    """
    with torch.no_grad():
        # Compared, not divided: the quotient of a norm that is let through may be rounded to just below 1.
        factor = torch.where(torch.isfinite(norm) & (norm > largest), largest / norm, torch.ones_like(norm))
        buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for each in gradients:
            part = each._values() if each.is_sparse else local_part(each)
            buckets.setdefault((part.device, part.dtype), []).append(part)
        for (device, _), bucket in buckets.items():
            torch_api.foreach_mul_(bucket, factor.to(device, non_blocking=True))
        return factor


REMEMBERED = 100
"""The usual norm is the median of so many."""
LEAST = 20
"""With fewer, nothing is known of what is usual, and nothing is clipped."""


class EasingClip:
    """The usual gradient norm of a training."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._norms: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def largest(self) -> float | None:
        """The norm that is let through; None while too little is known."""
        return self._times * median(self._norms) if len(self._norms) >= LEAST else None

    def take(self, norm: float) -> None:
        """Runs after a healthy step outside of easing, with the norm that the optimizer was given."""
        if math.isfinite(norm):
            self._norms.append(norm)

    def before_step(self, gradients: Sequence[Tensor], norm: Tensor) -> None:
        """Shorten gradients that are longer; `norm` is theirs, without a loss scale."""
        largest = self.largest
        if largest is not None and largest > 0:
            clip_in_place(gradients, norm, largest)


FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
"""How the optimizers of torch, and most others, call theirs."""


def reset_momentum(optimizer: Optimizer) -> int:
    """Set its first moments to zero; gives how many tensors that were."""
    count = 0
    for state in state_of(optimizer).values():
        for name in FIRST_MOMENTS:
            moment = state.get(name)
            if isinstance(moment, Tensor):
                moment.data.zero_()
                count += 1
    return count


SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf")


def reset_moments(optimizer: Optimizer) -> int:
    """Set both moments of Adam to zero, and its count of steps, as SPAM does; gives how many tensors of moments.

    Of an optimizer without second moments, the first ones are set to zero, and nothing else.
    """
    count = reset_momentum(optimizer)
    for state in state_of(optimizer).values():
        second = [each for name in SECOND_MOMENTS if isinstance(each := state.get(name), Tensor)]
        for each in second:
            each.data.zero_()
        count += len(second)
        steps = state.get("step")
        if second and isinstance(steps, Tensor):
            steps.data.zero_()  # else the bias of moments that begin at zero is not corrected
        elif second and steps is not None:
            state["step"] = 0
        product = state.get("mu_product")  # of NAdam: by it its first moment is corrected
        if isinstance(product, Tensor):
            product.data.fill_(1.0)
    return count
