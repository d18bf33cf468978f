"""Effects of precision on steps: Adam's epsilon, small gradients in fp16, updates that round to nothing.

Guarantees: no device is waited for; a few samples of weights in half precision are copied at these steps alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.hooks.thread_state import is_measurable, untracked
from mlflow_stability.probes.model_discovery import state_of
from mlflow_stability.probes.probe import StepView
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.probes.tensor_sums import HALVES
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType

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
            if halves and is_settled and _rounds(view.optimizer):
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


def _rounds(optimizer: Optimizer) -> bool:
    state = state_of(optimizer)
    return all(set(kept) <= OF_STEPS for kept in state.values() if isinstance(kept, dict))
