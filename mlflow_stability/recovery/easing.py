"""Smaller steps after a rollback: reduced learning rates, clipped gradients, reset moments.

Guarantees: schedulers and script see only their own learning rates; gradients within the threshold, or non-finite, stay
bit-identical; tensors keep their addresses and autograd versions; nothing waits for the device.
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

from mlflow_stability.probes.gradient_norm import local_part
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.model_discovery import state_of

Rate = float | Tensor


@dataclass(frozen=True, slots=True)
class EasingPlan:
    start: int  # first step of it
    factor: float = 0.5  # learning rate factor at the first step
    steps: int = 200  # number of steps until it ends
    lasting: float = 1.0  # learning rate factor that remains after it
    held: Mapping[int, tuple[float | None, ...]] = field(default_factory=dict)
    """Upper limits of the learning rates, by id of the optimizer, one for each group; None: no limit."""
    hold_doubles_in: int = 500  # number of steps in which these limits double
    linear: bool = False  # interpolate the factor by half a cosine, as SPAM does (arXiv 2501.06842); else its logarithm
    clips: bool = True  # whether gradients may be clipped meanwhile

    def share(self, step: int) -> float:
        """Return the learning rate factor at a step: smooth from `factor` to 1."""
        done = (step - self.start) / self.steps
        if done >= 1:
            return 1.0
        left = (1 + math.cos(math.pi * max(done, 0.0))) / 2
        return 1 - (1 - self.factor) * left if self.linear else math.pow(self.factor, left)

    def first_rate(self, optimizer: Optimizer) -> float:
        """Return the learning rate of the first group at the first step; NaN where only a device knows it."""
        rate, held = (rates_of(optimizer) or (math.nan,))[0], (self.held.get(id(optimizer)) or (None,))[0]
        asked = rate if held is None else min(rate, held / self.lasting)
        return asked * self.lasting * self.share(self.start)

    def ceiling(self, held: float, step: int) -> float:
        return held * math.pow(2.0, min(max(step - self.start, 0) / self.hold_doubles_in, 64.0))


@dataclass(slots=True)
class _Written:
    """A learning rate we wrote into a group, and the script's own."""

    eased: Rate
    original: Rate  # the script's own object; a copy of its value where it is a tensor


class Easing:
    def __init__(self, plan: EasingPlan) -> None:
        self.plan = plan
        self._held = {number: list(rates) for number, rates in plan.held.items()}
        self._written: MutableMapping[Optimizer, dict[int, _Written]] = WeakIdKeyDictionary()

    @property
    def held(self) -> dict[int, tuple[float | None, ...]]:
        """Return the limits that still hold, as `EasingPlan.held`."""
        return {number: tuple(rates) for number, rates in self._held.items()}

    def is_over(self, step: int) -> bool:
        lasts = self.plan.lasting < 1 or any(rate is not None for rates in self._held.values() for rate in rates)
        return step >= self.plan.start + self.plan.steps and not lasts

    def before_step(self, optimizer: Optimizer, step: int) -> None:
        self.step_ended(optimizer)  # left over from a step that raised an exception
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
        written = self._written.pop(optimizer, {})
        for number, rate in written.items():
            if number >= len(optimizer.param_groups):
                continue
            group = optimizer.param_groups[number]
            if isinstance(rate.eased, Tensor) and isinstance(rate.original, Tensor):
                rate.eased.data.copy_(rate.original)  # the tensor is the script's own, and keeps its address
            elif group.get("lr") is rate.eased:  # else the optimizer wrote its own
                group["lr"] = rate.original


def _write(group: dict[str, object], rate: Rate, share: float, limit: float | None) -> _Written:
    if isinstance(rate, Tensor):
        original = rate.detach().clone()
        eased = original if limit is None else original.clamp(max=limit)
        rate.data.copy_(eased * share)
        return _Written(rate, original)
    lowered = (rate if limit is None else min(rate, limit)) * share
    group["lr"] = lowered
    return _Written(lowered, rate)


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    """Return the learning rate of each group, within a step the reduced one; NaN where it is on a device or missing."""
    rates = []
    for group in optimizer.param_groups:
        rate = group.get("lr")
        rates.append(math.nan if rate is None or not getattr(rate, "is_cpu", True) else float(rate))
    return tuple(rates)


def held_rates(
    optimizer: Optimizer, before: tuple[float, ...], times: float, lasting: float = 1.0
) -> tuple[float | None, ...]:
    """Limit learning rates to those of a restored state where they have jumped since; None: no limit.

    `before` are the rates that the restored state was trained at. A rate above `times` as much is a jump; of the
    script's own rates only the share `lasting` is used.
    """
    pairs = zip(rates_of(optimizer), before, strict=False)
    return tuple(then if then > 0 and now * lasting > times * then else None for now, then in pairs)


def clip_in_place(gradients: Sequence[Tensor], norm: Tensor, largest: Tensor | float) -> Tensor:
    """Scale gradients of this `norm`, without a loss scale, to at most `largest`; return the factor on the device."""
    with torch.no_grad():
        # Compared, not divided: the quotient of a norm that is let through may be rounded to just below 1.
        factor = torch.where(torch.isfinite(norm) & (norm > largest), largest / norm, torch.ones_like(norm))
        buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for gradient in gradients:
            part = gradient._values() if gradient.is_sparse else local_part(gradient)
            buckets.setdefault((part.device, part.dtype), []).append(part)
        for (device, _), bucket in buckets.items():
            torch_api.foreach_mul_(bucket, factor.to(device, non_blocking=True))
        return factor


NORMS_REMEMBERED = 100  # number of gradient norms whose median is the usual one
NORMS_NEEDED = 20  # with fewer norms nothing is clipped


class EasingClip:
    """Clips at a multiple of the median gradient norm."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._norms: deque[float] = deque(maxlen=NORMS_REMEMBERED)

    @property
    def largest(self) -> float | None:
        """Return the threshold; None while too few norms are known."""
        return self._times * median(self._norms) if len(self._norms) >= NORMS_NEEDED else None

    def take(self, norm: float) -> None:
        """Learn the norm of a healthy step outside of easing."""
        if math.isfinite(norm):
            self._norms.append(norm)

    def before_step(self, gradients: Sequence[Tensor], norm: Tensor) -> None:
        largest = self.largest
        if largest is not None and largest > 0:
            clip_in_place(gradients, norm, largest)


FIRST_MOMENTS = ("exp_avg", "momentum_buffer")  # names of first moments in torch's optimizers and most others


def reset_momentum(optimizer: Optimizer) -> int:
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
    """Set both moments of Adam and its step count to zero, as SPAM does; return the number of moments.

    Without second moments only the first ones are set to zero.
    """
    count = reset_momentum(optimizer)
    for state in state_of(optimizer).values():
        second = [moment for name in SECOND_MOMENTS if isinstance(moment := state.get(name), Tensor)]
        for moment in second:
            moment.data.zero_()
        count += len(second)
        steps = state.get("step")
        if second and isinstance(steps, Tensor):
            steps.data.zero_()  # else the bias of moments that begin at zero is not corrected
        elif second and steps is not None:
            state["step"] = 0
        product = state.get("mu_product")  # NAdam corrects its first moment by it
        if isinstance(product, Tensor):
            product.data.fill_(1.0)
    return count


CLIP_SIGMAS = 2.5  # a gradient norm this many standard deviations above the mean is clipped
CLIP_MEMORY = 0.97  # decay of mean and variance at each step
CLIP_WARM_UP = 25  # number of norms before anything is clipped


class AdaptiveClip:
    """ZClip (arXiv 2504.02507): clips gradients whose norm is an outlier among the norms so far.

    A norm z standard deviations above the mean, above the limit L, is scaled to mean + L²/z standard deviations. Mean
    and variance learn the norm after clipping; non-finite norms and zeros (no reward in this step) are left out. On
    heavy-tailed norms it clips one step in thirty.
    """

    def __init__(self) -> None:
        self._known: MutableMapping[Optimizer, _Norms] = WeakIdKeyDictionary()

    def before_step(self, optimizer: Optimizer, gradients: Sequence[Tensor], norm: Tensor) -> Tensor | None:
        """Clip gradients that are outliers; return the factor on the device, None during warm-up."""
        norms = self._known.get(optimizer)
        if norms is None:
            norms = self._known[optimizer] = _Norms(norm)
        if norms.seen < CLIP_WARM_UP:
            norms.warm(norm)
            return None
        return clip_in_place(gradients, norm, norms.largest(norm))

    def forget(self) -> None:
        self._known.clear()


class _Norms:
    """Mean and variance of the norms of one optimizer, on its device."""

    def __init__(self, like: Tensor) -> None:
        self.seen = 0
        self.mean = torch.zeros_like(like.detach())
        self.variance = torch.zeros_like(self.mean)
        self._counted = torch.zeros_like(self.mean)

    def warm(self, norm: Tensor) -> None:
        self.seen += 1
        with torch.no_grad():
            self._take(norm, norm)

    def largest(self, norm: Tensor) -> Tensor:
        limit = CLIP_SIGMAS
        with torch.no_grad():
            spread = self.variance.sqrt().clamp(min=1e-12)
            z = (norm - self.mean) / spread
            stands_out = (z > limit) & (self._counted >= CLIP_WARM_UP)
            largest = torch.where(stands_out, self.mean + limit * limit / z * spread, norm)
            self._take(norm, largest)
            return largest

    def _take(self, norm: Tensor, let_through: Tensor) -> None:
        """Weigh the first norms equally, as Welford does."""
        counts = torch.isfinite(norm) & (norm > 0)
        self._counted += counts
        share = torch.where(self._counted > CLIP_WARM_UP, 1 - CLIP_MEMORY, 1 / self._counted)
        share = torch.where(counts, share, 0.0)
        off = torch.where(counts, let_through - self.mean, 0.0)
        self.mean = self.mean + share * off
        self.variance = (1 - share) * (self.variance + share * off * off)
