"""Throughput: steps, tokens, samples and FLOPs per second, and the share of the device's peak.

In: forward passes of training and optimizer steps. Out: every ten steps the rates since the last report, evaluation
and checkpoints included, and their means over the last hundred steps. Guarantees: what the shapes of the batches do
not say is not reported.

A batch is counted at the first forward pass before each backward pass. Where processes train on batches of their own
(DDP, FSDP), tokens and samples are multiplied by the number of processes; FLOPs are of this process, to compare with
its own device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.forward_watch import ForwardObserver
from mlflow_stability.probes.objects.module_names import WRAPPERS
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.performance.batch_shape import BatchShape, batch_shape, plain_batch
from mlflow_stability.probes.performance.device_peaks import device_peak
from mlflow_stability.probes.performance.flop_totals import FlopTotals
from mlflow_stability.probes.probe import BaseProbe, StepView, next_multiple
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "steps_per_second",
        "steps per second over the last 10, evaluation and checkpoints included",
        "throughput",
        unit="{step}/s",
    ),
    SignalType("steps_per_second_mean", "steps per second over the last 100 steps", "throughput", unit="{step}/s"),
    SignalType(
        "tokens_per_second",
        "tokens per second; from the model's first input: integers in two dimensions are tokens",
        "throughput",
        unit="{token}/s",
        exported="llm_tokens_per_second",
    ),
    SignalType("tokens_per_second_mean", "tokens per second over the last 100 steps", "throughput", unit="{token}/s"),
    SignalType(
        "samples_per_second",
        "samples per second: rows of the model's first input",
        "throughput",
        unit="{sample}/s",
        exported="llm_samples_per_second",
    ),
    SignalType(
        "samples_per_second_mean", "samples per second over the last 100 steps", "throughput", unit="{sample}/s"
    ),
    SignalType(
        "tokens_processed",
        "tokens trained on",
        "throughput",
        unit="{token}",
        exported="llm_tokens_processed_total",
        counter=True,
    ),
    SignalType(
        "tflops",
        "model TFLOPs per second, counted in one forward pass of the training",
        "throughput",
        unit="TFLOP/s",
        exported="llm_model_tflops",
    ),
    SignalType(
        "mfu",
        "share of the device's peak FLOPs, 0 to 1, where the peak is known",
        "throughput",
        exported="llm_model_flops_utilization",
    ),
)


def data_parallel_size(root: Module) -> int:
    """The processes that the outermost wrapper of a model shares its gradients with; 1 where none is known to.

    DDP and FSDP say with whom. A script that averages gradients by itself is taken for one process.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    module: Any = root
    while module is not None:
        if isinstance(module, DistributedDataParallel) or type(module).__name__ == "FullyShardedDataParallel":
            return int(module.process_group.size())
        parameter = next(Module.parameters(module), None)
        mesh = getattr(parameter, "device_mesh", None)
        if mesh is not None and any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            return int(mesh.size())
        module = next((module._modules[name] for name in WRAPPERS if set(module._modules) == {name}), None)
    return 1


EVERY = 10
"""Every how many steps rates are told."""
MEAN_OF = 10
"""How many reports their means are of: a hundred steps."""
MOST_USUAL = 32
"""Of so many models the last batch is known."""
FIRST_COUNT = 4
"""After so many steps operations are counted: the first ones are often unlike the rest."""


class Throughput(ForwardObserver, BaseProbe):
    """The rates of one training."""

    part = "throughput"

    def __init__(
        self,
        tokens_per_step: float | None = None,
        now: Callable[[], float] = time.perf_counter,
        peak: Callable[[torch.device, torch.dtype], float | None] = device_peak,
    ) -> None:
        self.flops = FlopTotals()
        self._tokens_per_step = tokens_per_step
        self._now = now
        self._peak = peak
        self.is_between = True
        """Whether the next forward pass is the first since the last backward pass."""
        self._tokens = self._samples = 0
        self.all_tokens = 0.0
        self._copies = 0
        self._steps = self._step = 0
        """How many steps there were, and the step of the last that was looked at."""
        self._told: dict[str, float] = {}
        self._reports: deque[tuple[float, int, float, float]] = deque(maxlen=MEAN_OF)
        """Seconds, steps, tokens and samples of the last reports."""
        self._since: tuple[float, int] | None = None
        """When rates were told last, and at which step; None: they begin at the next step."""
        self._seen = False
        """Whether a forward pass was seen."""
        self._usual: dict[int, tuple[tuple[Any, ...], BatchShape, float]] = {}
        """For each model, by identity, its last batch and the operations of such a pass, once known."""

    def forward_began(self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Runs right before a forward pass of training."""
        usual, plain = self._usual.get(id(root)), plain_batch(args, kwargs)
        if usual is not None and usual[0] == plain and not self.flops.is_counting:
            if self.is_between:
                self.is_between = False
                self._samples += usual[1].samples
                self._tokens += usual[1].tokens or 0
            self.flops.flops += usual[2]
            return False
        shape = batch_shape(args, kwargs)
        if shape is None:
            return False
        if not self._seen:  # steps before this one must not be in a rate
            self._seen, self._since = True, None
        if self.is_between:
            self.is_between = False
            self._samples += shape.samples
            self._tokens += shape.tokens or 0
            if not self._copies:
                self._copies = data_parallel_size(root)
        flops = self.flops.forward_began(root, args, kwargs, shape, self._steps >= FIRST_COUNT)
        if flops is None or len(self._usual) >= MOST_USUAL:
            self._usual.clear()  # what is found out now may end the count of all
        if flops is None or plain is None:
            self._usual.pop(id(root), None)
        else:
            self._usual[id(root)] = plain, shape, flops
        return self.flops.is_counting

    def forward_ended(self) -> None:
        """Runs right after it."""
        if self.flops.is_counting:
            self.flops.forward_ended()

    def forward_failed(self) -> None:
        """Runs where it raised an exception."""
        self.flops.give_up()

    def evaluated(self) -> None:
        """Runs after a forward pass that is no part of training."""
        self.flops.give_up()

    def pass_over(self) -> None:
        """No forward pass is going on any more, however the last one ended."""
        self.flops.give_up()

    def backward_began(self) -> None:
        """Runs right before a backward pass."""
        self.is_between = True
        if self.flops.is_counting:
            self.flops.give_up()

    def due(self, step: int) -> bool:
        """Every ten steps, and when rates begin."""
        self._steps += 1
        self.flops.give_up()  # one that was interrupted: before a step no forward pass is going on
        return step % EVERY == 0 or self._since is None

    def next_due(self, step: int) -> int:
        """The next step that may be due: the first ones are counted, and a rate begins at a step."""
        settled = self._seen and self._since is not None and self._steps >= FIRST_COUNT
        return next_multiple(step, EVERY) if settled else step + 1

    def before_step(self, view: StepView) -> None:
        """Runs when gradients are complete: between two steps lies one whole step, however late a capture ends."""
        if view.step != self._step:
            self._step = view.step
            if view.step % EVERY == 0 or self._since is None:
                self._told = self._rates(view.step)

    def blocks(self, _step: int) -> Sequence[Block]:
        """The rates, when it is time to tell them."""
        found, self._told = self._told, {}
        return [Block(whole_signals(tuple(found), ""), tuple(found.values()))] if found else ()

    def _rates(self, step: int) -> dict[str, float]:
        flops, now, before = self.flops.take(), self._now(), self._since
        steps = self._steps if before is None else step - before[1]
        copies = self._copies or 1
        samples = self._samples * copies
        tokens: float = self._tokens * copies
        self._since, self._tokens, self._samples = (now, step), 0, 0  # at once: Ctrl-C must not come in between
        if self._tokens_per_step is not None:
            tokens = self._tokens_per_step * steps
        elif before is None:
            tokens *= steps  # nobody saw the batches of the first step, or steps: they count as this one
        if before is None:
            self.all_tokens = tokens
            return {}
        self.all_tokens += tokens
        seconds = now - before[0]
        self._reports.append((seconds, steps, tokens, samples))
        every_second, every_step, every_token, every_sample = map(sum, zip(*self._reports, strict=True))
        found: dict[str, float] = {"steps_per_second": steps / seconds}
        found["steps_per_second_mean"] = every_step / every_second
        if every_token:
            found["tokens_per_second_mean"] = every_token / every_second
        if every_sample:
            found["samples_per_second_mean"] = every_sample / every_second
        if tokens:
            found["tokens_per_second"] = tokens / seconds
        if samples:
            found["samples_per_second"] = samples / seconds
        if flops:
            found |= self._operations(flops / seconds)
        if self.all_tokens:
            found["tokens_processed"] = self.all_tokens
        return found

    def _operations(self, rate: float) -> dict[str, float]:
        found = {"tflops": rate / 1e12}
        book = self.flops
        peak = self._peak(book.device, book.dtype) if book.device is not None and book.dtype is not None else None
        if peak is not None:
            found["mfu"] = rate / peak
        return found
