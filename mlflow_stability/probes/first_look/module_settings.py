"""Looks at settings in the first steps: weight decay, dropout, sums of losses; effects of precision on steps.

Of precision: Adam's epsilon, small gradients in fp16, updates that round to nothing. Guarantees: no device is waited
for; a few samples of weights in half precision are copied at some steps alone.
"""

from __future__ import annotations

import math
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from mlflow_stability.kinds.first_look.accumulation import (
    AccumulationFacts,
    AccumulationSum,
    DiscardedGradientsFacts,
    GradientsDiscarded,
    RepeatedBackward,
    RepeatedBackwardFacts,
)
from mlflow_stability.kinds.first_look.settings import (
    GroupRateZero,
    OptimizedTwice,
    OptimizedTwiceFacts,
    OptimizerRecreated,
    RecreatedFacts,
    ScheduleUnused,
    StrongDropout,
    StrongDropoutFacts,
    UnusedScheduleFacts,
    ZeroGroupFacts,
)
from mlflow_stability.kinds.optimizer.clipping_and_decay import OF_L2, OF_RATE, StrongDecayFacts, StrongWeightDecay
from mlflow_stability.probes.first_look.loss_graph import LOSSES, MEAN, node_name, undivided
from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.hooks.thread_state import is_measurable, untracked
from mlflow_stability.probes.model_discovery import Kind, plain_name, remembered, state_of
from mlflow_stability.probes.probe import StepView
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.probes.tensor_sums import HALVES
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType
from mlflow_stability.vocabulary.result import Finding, Severity

DECAY_LIMITS = StrongWeightDecay()
_DECOUPLED = ("Lion", "Muon")


def strong_decay(optimizer: Optimizer, step: int) -> Finding | None:
    """Return a finding about the parameter group with the strongest decay, if that is too strong."""
    strong = []
    for group in optimizer.param_groups:
        decay, rate = group.get("weight_decay"), group.get("lr")
        if not isinstance(decay, float | int) or not isinstance(rate, float | int):
            continue
        if type(optimizer) is Adam and not group.get("decoupled_weight_decay") and decay >= DECAY_LIMITS.strong_l2:
            strong.append(StrongDecayFacts(float(decay), float(rate), is_l2=True))
        if decay * rate < DECAY_LIMITS.strong:
            continue
        name, is_set = type(optimizer).__name__, bool(group.get("decoupled_weight_decay"))
        if is_set or type(optimizer) is SGD or name.endswith("AdamW") or name.startswith(_DECOUPLED):
            strong.append(StrongDecayFacts(float(decay), float(rate)))  # it multiplies weights by 1 - rate * decay
    if not strong:
        return None
    facts = max(strong, key=lambda facts: facts.shrinks_by)
    of_decay = OF_RATE if facts.weight_decay <= DECAY_LIMITS.usual else StrongWeightDecay.remedies
    remedies = OF_L2 if facts.is_l2 else of_decay
    return Finding.at(facts, step, Severity.WARNING, remedies=remedies)


DROPPED, SHARED, ACCUMULATION = StrongDropout().least, OptimizedTwice().share, AccumulationSum()
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
SAME_SHARE = 1e-4  # relative rounding of a factor on the loss
MEANS = frozenset((*LOSSES, "MseLoss", "SmoothL1Loss", "HuberLoss"))  # their nodes say how they reduce


def strong_dropout(models: Sequence[Module], step: int) -> Finding | None:
    """Return a finding about the dropout with the highest probability, if it drops nearly all."""
    named = (pair for model in models for pair in Module.named_modules(model))
    strong = [
        StrongDropoutFacts(plain_name(name) or type(module).__name__, float(module.p))
        for name, module in named
        if isinstance(module, DROPOUTS) and module.training and DROPPED <= module.p < 1
    ]
    if not strong:
        return None
    facts = max(strong, key=lambda facts: facts.probability)
    return Finding.at(facts, step, Severity.WARNING, place=facts.module, remedies=StrongDropout.remedies)


class _Stepped(NamedTuple):
    optimizer: weakref.ref[Optimizer]
    gradients: dict[int, tuple[weakref.ref[Tensor], int]]  # by parameter: the gradient and its version counter

    def used(self, parameter: Tensor) -> bool:
        gradient, (reference, version) = parameter.grad, self.gradients.get(id(parameter), _NO_GRADIENT)
        return gradient is not None and reference() is gradient and version == gradient._version


_NO_GRADIENT: tuple[Callable[[], Tensor | None], int] = (lambda: None, 0)


class SharedParameters:
    """Optimizers that took a step with the same gradients of the same parameters."""

    def __init__(self) -> None:
        self._step = 0
        self._stepped: list[_Stepped] = []  # in the present step
        self._before = 0  # last step in which two shared parameters

    def look(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Return a finding if it shares most parameters with another optimizer, as at the last look."""
        if step != self._step:
            self._step, self._stepped = step, []
        others = [other for other in self._stepped if other.optimizer() not in (None, optimizer)]
        gradients = {id(held): held.grad for held in parameters_of(optimizer)}
        held = {key: (weakref.ref(grad), grad._version) for key, grad in gradients.items() if grad is not None}
        self._stepped.append(_Stepped(weakref.ref(optimizer), held))
        for other in others:
            facts = _shared(optimizer, other)
            if facts is not None:
                before, self._before = self._before, step
                if 0 < before < step:
                    return Finding.at(facts, step, Severity.WARNING, remedies=OptimizedTwice.remedies)
        return None


def _shared(optimizer: Optimizer, stepped: _Stepped) -> OptimizedTwiceFacts | None:
    other = stepped.optimizer()
    if other is None or optimizer.param_groups is other.param_groups:
        return None
    if any(held is optimizer or held is other for held in (*vars(optimizer).values(), *vars(other).values())):
        return None  # one is made of the other
    own, others = parameters_of(optimizer), parameters_of(other)
    both = [tensor for tensor in own if stepped.used(tensor)]
    share = _values(both) / max(1, min(_values(own), _values(others)))
    return OptimizedTwiceFacts(len(both), share) if share >= SHARED else None


def _values(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


class SameLoss:
    """Backward passes that begin at the same loss as the one before them."""

    def __init__(self) -> None:
        self._newest: tuple[weakref.ref[Tensor], int] | None = None  # the last loss, and its version counter
        self._step = self._last = self._in_a_row = 0
        self._passes = 1

    def note(self, loss: Tensor, step: int) -> Finding | None:
        """Count one loss; return a finding after enough steps in a row."""
        before, self._newest = self._newest, (weakref.ref(loss), loss._version)
        is_same = before is not None and before[0]() is loss and before[1] == loss._version
        self._passes = self._passes + 1 if is_same and step == self._step else 1
        self._step = step
        if self._passes != 2:
            return None
        self._in_a_row = self._in_a_row + 1 if step == self._last + 1 else 1
        self._last = step
        if self._in_a_row != RepeatedBackward().steps:
            return None
        return Finding.at(RepeatedBackwardFacts(), step, Severity.INFO, remedies=RepeatedBackward.remedies)


class Accumulation:
    """Backward passes of a step that begin at a mean of the same loss function, or at a share of one."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._shares: list[float] = []  # that the script multiplies each loss by
        self._steps = self._discarded = 0  # in a row
        self._step = 0

    def note(self, loss: Tensor, step: int) -> Finding | None:
        """Count one loss; return a finding after enough steps."""
        finding = None
        if step != self._step:
            finding = self._end_step(step)
            self._step, self._names, self._shares = step, [], []
        node = loss.grad_fn
        name = node_name(node)
        is_mean = name in MEANS and getattr(node, "_saved_reduction", None) == MEAN
        self._names.append(name if is_mean else "")
        self._shares.append(undivided(loss)[1])
        return finding

    def discarded(self, view: StepView) -> Finding | None:
        """Return a finding after enough steps that used only the last of the passes whose shares make up one loss."""
        passes = len(self._shares) if view.step == self._step else 0
        is_one = all(math.isclose(share * passes, 1.0, rel_tol=SAME_SHARE) for share in self._shares)
        self._discarded = self._discarded + 1 if is_one and view.discarded == passes - 1 > 0 else 0
        if self._discarded != GradientsDiscarded().steps:
            return None
        facts = DiscardedGradientsFacts(passes)
        return Finding.at(facts, view.step, Severity.WARNING, remedies=GradientsDiscarded.remedies)

    def _end_step(self, step: int) -> Finding | None:
        is_sum = len(self._names) >= ACCUMULATION.passes and len(set(self._names)) == 1 and self._names[0]
        self._steps = self._steps + 1 if is_sum else 0
        if self._steps != ACCUMULATION.steps:
            return None
        facts = AccumulationFacts(len(self._names))
        return Finding.at(facts, step - 1, Severity.INFO, remedies=AccumulationSum.remedies)


WITH_AVERAGES = (Adam, AdamW, NAdam, RAdam, Adamax, RMSprop)
MAX_RECREATED = 64  # sets of parameters


class Recreated:
    """Optimizers of the same parameters, at looks at different steps."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], list[weakref.ref[Optimizer]]] = {}
        self._kept: set[tuple[int, ...]] = set()  # parameters of an optimizer that was seen twice

    def look(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Return a finding if each look at its parameters met an optimizer that had not been there before."""
        is_sgd = type(optimizer) is SGD
        averages = is_sgd and any(group.get("momentum") for group in optimizer.param_groups)
        if not (averages or type(optimizer) in WITH_AVERAGES) or len(self._seen) > MAX_RECREATED:
            return None
        key = tuple(id(held) for held in parameters_of(optimizer))
        seen = self._seen.setdefault(key, [])
        if key in self._kept or any(reference() is optimizer for reference in seen):
            self._kept.add(key)
            return None
        seen.append(weakref.ref(optimizer))
        if len(seen) != OptimizerRecreated().looks:
            return None
        facts = RecreatedFacts(type(optimizer).__name__, len(seen))
        return Finding.at(facts, step, Severity.WARNING, remedies=OptimizerRecreated.remedies)


class ZeroGroups:
    """Parameter groups with a learning rate of zero at all looks."""

    def __init__(self) -> None:
        self._looks: dict[tuple[int, int], int] = {}  # by identity of a parameter and of the group's list

    def look(self, optimizer: Optimizer, step: int, needed: int) -> Finding | None:
        """Return a finding about a group at whose looks, `needed` or more, the rate was zero."""
        groups = optimizer.param_groups
        rates = [rate for group in groups if isinstance(rate := group.get("lr"), float | int)]
        if len(rates) < len(groups) or not any(rates):
            return None
        for number, (group, rate) in enumerate(zip(groups, rates, strict=True)):
            held = [tensor for tensor in group["params"] if tensor.grad is not None]
            share = _values(held) / max(1, _values(parameters_of(optimizer)))
            if rate or share < GroupRateZero().share:
                continue
            key = id(held[0]), len(held)
            self._looks[key] = self._looks.get(key, 0) + 1
            if self._looks[key] == needed:
                facts = ZeroGroupFacts(number, share, max(rates))
                return Finding.at(facts, step, Severity.INFO, remedies=GroupRateZero.remedies)
        return None


class Schedules:
    """Schedules that were stepped between two looks, of optimizers that never step."""

    def __init__(self) -> None:
        self._looked_at = 0
        self._counts: dict[int, int] = {}  # of steps of each schedule at the last look, by identity

    def look(self, stepping: Sequence[Optimizer], step: int) -> Finding | None:
        """Return a finding about one whose parameters other optimizers train; looks once at each step."""
        if self._looked_at == step or not stepping:
            return None
        self._looked_at, before, self._counts = step, self._counts, {}
        schedules = remembered(Kind.SCHEDULE)[0]
        for schedule in schedules:
            held, count = vars(schedule).get("optimizer"), vars(schedule).get("last_epoch")
            if not isinstance(held, Optimizer) or not isinstance(count, int) or _has_stepped(held, stepping):
                continue
            self._counts[id(schedule)] = count
            rate, used = _highest_rate([held]), _highest_rate(stepping)
            if rate is not None and used not in (None, rate) and count > before.get(id(schedule), count):
                facts = UnusedScheduleFacts(type(schedule).__name__, rate, used or 0.0)
                # One that the script still has may take its turn later. Two references are those of this call.
                is_lost = sys.getrefcount(held) <= 2 + sum(vars(other).get("optimizer") is held for other in schedules)
                severity = Severity.WARNING if is_lost else Severity.INFO
                return Finding.at(facts, step, severity, remedies=ScheduleUnused.remedies)
        return None


def _highest_rate(optimizers: Sequence[Optimizer]) -> float | None:
    rates = [group.get("lr") for group in _groups(optimizers)]
    return max((float(rate) for rate in rates if isinstance(rate, float | int)), default=None)


def _groups(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _has_stepped(held: Optimizer, stepping: Sequence[Optimizer]) -> bool:
    """Whether an optimizer has taken a step, shares groups with one that does, or has parameters of its own."""
    groups, attributes = _groups(stepping), [*vars(held).values(), *(v for o in stepping for v in vars(o).values())]
    shared = any(group is other for group in held.param_groups for other in groups)
    trained = {id(tensor) for group in groups for tensor in group["params"]}
    is_wrapped = any(value is held or any(value is other for other in stepping) for value in attributes)
    is_other = not parameters_of(held) or any(id(tensor) not in trained for tensor in parameters_of(held))
    return vars(held).get("_opt_called", False) or bool(held.state) or shared or is_wrapped or is_other


SIGNALS = (
    SignalType(
        "gradient_over_epsilon",
        "root mean square of the gradients over Adam's epsilon; at steps 10, 20, 100 and 1000",
        "optimizer",
    ),
    SignalType("fp16_gradient_max", "largest gradient in fp16, without a loss scaler; at the same steps", "gradients"),
    SignalType(
        "updates_lost",
        "share of weights in half precision with a gradient that a step left as they were; at the same steps",
        "optimizer",
        of_steps_taken=True,
    ),
)
OVER_EPSILON = (Signal("gradient_over_epsilon", ""),)
FP16_MAX = (Signal("fp16_gradient_max", ""),)
LOST = (Signal("updates_lost", ""),)
MAX_SAMPLED_TENSORS = 8  # the largest ones
MAX_SAMPLE = 2**16  # values of a tensor
MIN_RISE = 1.001  # of the learning rate since the last look: early steps of a warm-up are small
# State of optimizers that round their steps; others may keep what rounding removed.
OF_STEPS = frozenset(("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg"))
_ADAMS = re.compile(r"adam", re.IGNORECASE)


class Precision:
    def __init__(self) -> None:
        self._rate: float | None = None  # learning rate at the last look
        # Some weights, a copy of their values, and whether they have a gradient.
        self._samples: list[tuple[Tensor, Tensor, Tensor]] = []
        self._blocks: list[Block] = []

    def before_step(self, view: StepView) -> None:
        rates, before = [group.get("lr", 0.0) for group in view.optimizer.param_groups], self._rate
        self._rate = max(rates, default=0.0) if all(isinstance(rate, float | int) for rate in rates) else None
        is_settled = before is not None and self._rate is not None and self._rate <= MIN_RISE * before
        self._samples = []
        held = [tensor for tensor in parameters_of(view.optimizer) if _is_plain(tensor) and _is_plain(tensor.grad)]
        with untracked():
            self._over_epsilon(view, held)
            halves = [tensor for tensor in held if tensor.dtype in HALVES]
            gradients = [tensor.grad for tensor in halves if tensor.grad is not None]
            if view.unscale is None and gradients and all(gradient.dtype is torch.float16 for gradient in gradients):
                largest = [gradient.abs().amax().float() for gradient in gradients]
                self._blocks.append(Block(FP16_MAX, torch.stack(largest).amax().reshape(1)))
            states = [kept for kept in state_of(view.optimizer).values() if isinstance(kept, dict)]
            if halves and is_settled and all(set(kept) <= OF_STEPS for kept in states):  # its steps are rounded
                chosen = sorted(halves, key=Tensor.numel, reverse=True)[:MAX_SAMPLED_TENSORS]
                self._samples = [_sampled(tensor) for tensor in chosen]

    def after_step(self, view: StepView) -> None:
        samples, self._samples = self._samples, []
        if not samples or view.skipped:
            return
        with untracked():
            lost = [((now == before) & has_gradient).sum() for now, before, has_gradient in samples]
            counted = [has_gradient.sum() for _, _, has_gradient in samples]
            share = torch.stack(lost).sum() / torch.stack(counted).sum().clamp(min=1)
            self._blocks.append(Block(LOST, share.reshape(1)))

    def forget(self) -> None:
        self._samples, self._blocks = [], []

    def blocks(self) -> list[Block]:
        blocks = self._blocks
        self.forget()  # a step that raised an error has left its samples
        return blocks

    def _over_epsilon(self, view: StepView, held: Sequence[Tensor]) -> None:
        epsilons = [group.get("eps") for group in view.optimizer.param_groups]
        count = sum(tensor.numel() for tensor in held)
        if view.norm is None or not count or not _ADAMS.search(type(view.optimizer).__name__):
            return
        numbers = [float(epsilon) for epsilon in epsilons if isinstance(epsilon, float | int) and epsilon > 0]
        if len(numbers) == len(epsilons):
            over = view.norm / (min(numbers) * count**0.5)
            self._blocks.append(Block(OVER_EPSILON, over.reshape(1) if isinstance(over, Tensor) else (over,)))


def _is_plain(tensor: Tensor | None) -> bool:
    return tensor is not None and is_measurable(tensor) and tensor.is_floating_point()


def _sampled(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert tensor.grad is not None
    stride = max(1, tensor.numel() // MAX_SAMPLE)
    now = tensor.detach().flatten()[::stride] if tensor.is_contiguous() else tensor.detach()
    gradient = tensor.grad.flatten()[::stride] if tensor.is_contiguous() else tensor.grad
    return now, now.clone(), gradient != 0
