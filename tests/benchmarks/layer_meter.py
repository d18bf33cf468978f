"""Measures a training by layer in plain torch, independently of the package: gradients, weights, real updates.

In: models that are to be watched, and the loss of every step. Out: for each optimizer a table of signals by step.
Everything is measured at every step, so that any schedule can be tried afterwards; what is slow is left slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from mlflow_stability.vocabulary import Signal, StepReading

WHOLE = ("", "track_1", "track_2")
"""The places of the first, second and third optimizer; all other places are layers."""
EVERY_STEP = frozenset({"loss", "grad_norm", "learning_rate", "step_time"})
"""Of the whole model."""
SPEED = Signal("samples_per_second")
"""In batches, all of which are of one size here; over the last ten steps."""


@dataclass(slots=True)
class Table:
    """What one optimizer did."""

    signals: tuple[Signal, ...]
    rows: list[tuple[float | None, ...]] = field(default_factory=list)
    """Step by step, the first is step 1; None: there was nothing to measure."""

    def readings(self, whole_every: int = 10, layers_every: int = 100, rms_every: int = 100) -> Iterator[StepReading]:
        """What a recording with these schedules would hold."""

        def schedule(signal: Signal) -> int:
            if signal.quantity == "adam_rms":
                return rms_every
            if signal.place not in WHOLE:
                return layers_every
            return 1 if signal.quantity in EVERY_STEP else whole_every

        every = [schedule(each) for each in self.signals]
        clock = [each.quantity for each in self.signals].index("step_time")
        layouts: dict[tuple[int, ...], tuple[Signal, ...]] = {}
        for step, row in enumerate(self.rows, start=1):
            kept = tuple(at for at, value in enumerate(row) if value is not None and step % every[at] == 0)
            layout = layouts.setdefault(kept, tuple(self.signals[at] for at in kept))
            values = tuple(row[at] for at in kept)
            if step % 10 == 0:
                layout, values = (
                    (*layout, SPEED),
                    (*values, 10 / sum(each[clock] for each in self.rows[step - 10 : step])),
                )
            yield StepReading(step, layout, values, 0, float(step))


class Meter:
    """Watches every optimizer that steps while it is on."""

    def __init__(self) -> None:
        self.tables: dict[int, Table] = {}
        """By the id of the optimizer."""
        self.norm_before_clipping: float | None = None
        """Where the training clips, it says so before each step."""
        self._layers: dict[int, str] = {}
        self._loss = math.nan
        self._weights: list[Tensor] = []
        self._row: dict[Signal, float | None] = {}
        self._ended = time.perf_counter()
        self.start()

    def watch(self, model: nn.Module, prefix: str = "") -> None:
        """Name the layers of a model: a layer is a module that has parameters of its own."""
        for name, module in model.named_modules():
            for each in module.parameters(recurse=False):
                self._layers.setdefault(id(each), prefix + name or "root")

    def loss(self, value: float) -> None:
        """The loss whose gradients the next step of an optimizer takes."""
        self._loss = value

    def start(self) -> None:
        """Watch, as it does from the beginning."""
        self._handles = [
            register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._before(optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._after(optimizer)),
        ]

    def stop(self) -> None:
        """Watch no more."""
        for each in self._handles:
            each.remove()

    @torch.no_grad()
    def _before(self, optimizer: Optimizer) -> None:
        elapsed = time.perf_counter() - self._ended
        parameters, layers = self._parameters(optimizer)
        norms = [0.0 if each.grad is None else float(each.grad.float().norm()) for each in parameters]
        by_layer = roots(layers, norms)
        at_gate = math.sqrt(sum(each * each for each in by_layer.values()))
        place = self._place(optimizer)
        self._row = {
            Signal("loss", place): self._loss,
            Signal("grad_norm", place): at_gate if self.norm_before_clipping is None else self.norm_before_clipping,
            Signal("learning_rate", place): max(group["lr"] for group in optimizer.param_groups),
            Signal("step_time", place): elapsed,
        }
        self._row |= {Signal("grad_norm", layer): by_layer.get(layer) for layer in dict.fromkeys(layers)}
        self.norm_before_clipping = None
        self._weights = [each.detach().clone() for each in parameters]

    @torch.no_grad()
    def _after(self, optimizer: Optimizer) -> None:
        parameters, layers = self._parameters(optimizer)
        place, row = self._place(optimizer), self._row
        weights = [float(each.float().norm()) for each in self._weights]
        updates = [float((each - old).float().norm()) for each, old in zip(parameters, self._weights, strict=True)]
        outrun = [outrunning(optimizer, each) for each in parameters]
        sizes = [None if each is None else math.sqrt(of.numel()) for each, of in zip(outrun, parameters, strict=True)]
        for names in (layers, [place] * len(layers)):
            norm, moved, ahead, size = (roots(names, each) for each in (weights, updates, outrun, sizes))
            for name in dict.fromkeys(names):
                row[Signal("param_norm", name)] = norm[name]
                row[Signal("update_ratio", name)] = moved[name] / norm[name] if norm[name] else None
                row[Signal("adam_rms", name)] = ahead[name] / size[name] if name in ahead else None
        table = self.tables.setdefault(id(optimizer), Table(tuple(row)))
        table.rows.append(tuple(row.get(each) for each in table.signals))
        self._ended = time.perf_counter()

    def _parameters(self, optimizer: Optimizer) -> tuple[list[Tensor], list[str]]:
        found = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
        return found, [self._layers[id(each)] for each in found]

    def _place(self, optimizer: Optimizer) -> str:
        known = [*self.tables]
        return WHOLE[known.index(id(optimizer)) if id(optimizer) in known else len(known)]


def roots(names: list[str], values: Sequence[float | None]) -> dict[str, float]:
    """By name, the root of the sum of the squares of what there is."""
    sums: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if value is not None:
            sums[name] = sums.get(name, 0.0) + value * value
    return {name: math.sqrt(each) for name, each in sums.items()}


def outrunning(optimizer: Optimizer, parameter: Tensor) -> float | None:
    """The norm of the gradient over its remembered size, where Adam remembers one."""
    state = optimizer.state.get(parameter, {})
    if parameter.grad is None or "exp_avg_sq" not in state:
        return None
    group = optimizer.param_groups[0]
    remembered = state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))
    return float((parameter.grad**2 / remembered.clamp_min(group["eps"] ** 2)).sum().sqrt())
