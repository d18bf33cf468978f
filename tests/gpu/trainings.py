"""Trainings that checks repeat bare and watched, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from gpu.check import Bench, NotHereError
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from zoo.tiny_gpt import TinyGPT

LENGTH, VOCABULARY = 128, 512
MOST_SEQUENCES = 4096


@dataclass(frozen=True)
class Variant:
    """A way to train that users have."""

    name: str
    optimizer: Callable[[Iterable[Tensor]], Optimizer] = lambda parameters: AdamW(parameters, lr=3e-4)
    autocast: torch.dtype | None = None
    scaled: bool = False
    compiled: bool = False
    graphed: bool = False
    """Forward and backward passes are CUDA graphs."""
    needs_cuda: bool = False


VARIANTS = (
    Variant("eager"),
    Variant("foreach", lambda parameters: AdamW(parameters, lr=3e-4, foreach=True)),
    Variant("fused", lambda parameters: AdamW(parameters, lr=3e-4, fused=True)),
    Variant("capturable", lambda parameters: AdamW(parameters, lr=3e-4, capturable=True), needs_cuda=True),
    Variant("bf16", autocast=torch.bfloat16),
    Variant("fp16, scaled", autocast=torch.float16, scaled=True, needs_cuda=True),
    Variant("compiled", compiled=True),
    Variant("CUDA graphs", graphed=True, needs_cuda=True),
)


class Training:
    """A GPT of 5 million parameters, trained in one of these ways; in a quick run of 200 thousand."""

    def __init__(self, bench: Bench, variant: Variant, sequences: int = 8) -> None:
        if variant.needs_cuda and not bench.is_cuda:
            raise NotHereError(f"{variant.name} needs CUDA")
        torch.manual_seed(0)
        self.bench, self.variant = bench, variant
        layers, width = (3, 64) if bench.quick else (6, 256)
        model: nn.Module = TinyGPT(layers, width, vocabulary=VOCABULARY, length=LENGTH).to(bench.device)
        self.optimizer = variant.optimizer(model.parameters())
        drawn = torch.randint(VOCABULARY, (sequences, LENGTH + 1), device=bench.device)
        self.batch = (drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())
        if variant.graphed:
            model = torch.cuda.make_graphed_callables(model, self.batch)  # type: ignore[assignment]
        self.model = model
        self._call: Callable[..., Tensor] = torch.compile(model) if variant.compiled else model
        self.scaler = torch.amp.GradScaler(bench.device.type, enabled=variant.scaled)

    def step(self) -> Tensor:
        """One step; its loss stays on the device."""
        with self._autocast():
            loss = self._call(*self.batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.variant.graphed)
        return loss.detach()

    def _autocast(self) -> AbstractContextManager[object]:
        kind = self.variant.autocast
        return nullcontext() if kind is None else torch.autocast(self.bench.device.type, kind)


def sequences_for(bench: Bench, milliseconds: float, timed: Callable[[Training], float]) -> int:
    """How many sequences make an eager step as long as that, or the longest that is tried."""
    sequences = 1
    while sequences < MOST_SEQUENCES:
        took = timed(Training(bench, VARIANTS[0], sequences)) * 1e3
        if took >= 0.8 * milliseconds:
            break
        sequences = max(sequences + 1, min(8 * sequences, math.ceil(sequences * milliseconds / took)))
    return sequences
