"""Statistics of module outputs, and of the input of the first layer.

Outputs are of each module that is a leaf or has parameters of its own, but not of the outermost one: of its first call,
the first output tensor. Inputs are measured where the first layer is linear, a convolution or recurrent; their size
neither behind an embedding nor beside a normalisation, where it says nothing about the data, or does not matter.

Guarantees: outputs are read before they can be changed in place; only samples are kept, at most four million values
together; no random number is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules import batchnorm, conv, instancenorm

from mlflow_stability.probes.hooks.thread_state import untracked
from mlflow_stability.probes.inside.activation_statistics import (
    ALWAYS,
    QUANTITIES,
    ActivationSample,
    OutputKind,
    nature_of,
    output_tensor,
    sample_of_output,
    statistics_of,
)
from mlflow_stability.probes.probe import Guard, ProbeFactory, SampledForwardProbe
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.probes.tensor_sums import HALVES, on_device
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType("input_low", "lowest input of the first layer; every `layers_every_n_steps`"),
    SignalType("input_high", "highest input of the first layer"),
    SignalType("input_rms", "root mean square of the inputs of the first layer"),
    SignalType(
        "input_spread", "largest difference between rows of the input of the first layer; 0: all rows are the same"
    ),
    topic="activations",
)
MAX_SAMPLE = 2**16  # values of one output
MAX_SAMPLES_TOGETHER = 2**22
MAX_MODULES = 1024  # of more, every second or third is measured


class ActivationProbe(SampledForwardProbe):
    part = "activations"

    def __init__(self, guard: Guard, every: int = 100, models: Callable[[], Sequence[Module]] = list) -> None:
        super().__init__(guard, every, models)
        self._names: dict[int, tuple[str, OutputKind]] = {}  # modules of the present pass, by identity
        self._quota = MAX_SAMPLE
        self._axes: dict[torch.Size, int] = {}  # dimension of the units of outputs by shape
        self._samples: dict[str, tuple[OutputKind, ActivationSample]] = {}
        self._complete: dict[str, tuple[OutputKind, ActivationSample]] = {}  # of passes that have ended

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        hooks = self.observe(alive)
        self._axes.clear()
        modules = self._modules.inside(root)
        chosen = [(name, module, kind) for name, module in modules if (kind := _kind_of_measured(module))]
        chosen = chosen[:: -(-len(chosen) // MAX_MODULES) or 1]
        self._quota = max(min(MAX_SAMPLE, MAX_SAMPLES_TOGETHER // max(len(chosen), 1)), 1)
        for name, module, kind in chosen:
            self._names[id(module)] = name, kind
            hooks.after(module, self._take)

    def close(self, whole: bool) -> None:
        self.stop()
        self._names.clear()
        if whole:
            self._complete.update(self._samples)
        self._samples.clear()

    def blocks(self) -> Sequence[Block]:
        samples = dict(self._complete)
        self._complete.clear()
        by_device: dict[torch.device, list[str]] = {}
        for name, (_, sample) in samples.items():
            by_device.setdefault(sample.values.device, []).append(name)
        with untracked():
            return [self._block(device, names, samples) for device, names in by_device.items()]

    def finish(self) -> None:
        self._complete.clear()

    def _take(self, module: Module, _args: tuple[Any, ...], output: Any) -> None:
        name, kind = self._names.get(id(module), ("", None))
        if kind is None or name in self._samples:
            return
        with untracked():
            sample = sample_of_output(output, kind, self._axes, self._quota)
        if sample is not None:
            self._samples[name] = kind, sample

    def _block(
        self, device: torch.device, names: Sequence[str], taken: dict[str, tuple[OutputKind, ActivationSample]]
    ) -> Block:
        kinds = [taken[name][0] for name in names]
        samples = [taken[name][1] for name in names]
        of_units = tuple(sample.units is not None for sample in samples)
        signals, places = _layout(tuple(names), tuple(kinds), of_units)
        table: Tensor = statistics_of(samples, kinds).flatten()
        return Block(signals, table.index_select(0, on_device(places, device, torch.long)))


def _kind_of_measured(module: Module) -> OutputKind | None:
    leaf = not module._modules
    owns = any(parameter is not None for parameter in module._parameters.values())
    return nature_of(module) if leaf or owns else None


# The signals of each module, and their places in the table of all numbers of all modules.
@lru_cache(maxsize=16)
def _layout(
    names: tuple[str, ...], kinds: tuple[OutputKind, ...], of_units: tuple[bool, ...]
) -> tuple[tuple[Signal, ...], tuple[int, ...]]:
    signals: list[Signal] = []
    places: list[int] = []
    for column, quantity in enumerate(QUANTITIES):
        for row, (name, kind, has_units) in enumerate(zip(names, kinds, of_units, strict=True)):
            applies = {
                "activation_saturation": kind.saturates,
                "activation_dead": has_units and (kind.rectifies or kind.may_rectify),
                "activation_dormant": has_units,
            }
            if column < ALWAYS or applies[quantity]:
                signals.append(Signal(quantity, name))
                places.append(row * len(QUANTITIES) + column)
    return tuple(signals), tuple(places)


SIZES = ("input_low", "input_high", "input_rms")
SPREAD = "input_spread"
NORMS = (batchnorm._NormBase, instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
LAYERS = (nn.Linear, conv._ConvNd, nn.RNNBase)
MIN_ROWS = 8  # of which the spread is measured
MAX_INPUT_VALUES = 2**24  # of larger inputs the first rows are measured


class InputProbe(SampledForwardProbe):
    part = "inputs"

    def __init__(self, guard: Guard, every: int = 100, models: Callable[[], Sequence[Module]] = list) -> None:
        super().__init__(guard, every, models)
        self._names: dict[int, str] = {}  # modules of the present pass, by identity
        self._is_embedded = False  # an embedding was called before the first layer
        self._is_normalised = False  # a normalisation follows it
        self._row: tuple[str, Tensor, Tensor | None] | None = None  # of the first layer: name, sizes, spread
        self._calls = 0
        self._blocks: list[Block] = []

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        hooks = self.observe(alive)
        self._is_embedded = self._is_normalised = False
        self._row, self._calls = None, 0
        for name, module in self._modules.inside(root):
            owns = any(parameter is not None for parameter in module._parameters.values())
            if owns or isinstance(module, NORMS):
                self._names[id(module)] = name
                hooks.before(module, self._take)

    def close(self, whole: bool) -> None:
        self.stop()
        self._names.clear()
        row, self._row = self._row, None
        if whole and row is not None:
            name, sizes, spread = row
            if spread is not None:
                self._blocks.append(Block((Signal(SPREAD, name),), spread))
            if not self._is_embedded and not self._is_normalised:
                self._blocks.append(Block(tuple(Signal(quantity, name) for quantity in SIZES), sizes))

    def blocks(self) -> Sequence[Block]:
        blocks, self._blocks = self._blocks, []
        return blocks

    def finish(self) -> None:
        self._blocks = []

    def _take(self, module: Module, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        name = self._names.get(id(module))
        if name is None:
            return
        if isinstance(module, EMBEDDINGS) and not self._calls:
            self._is_embedded = True
            return
        self._calls += 1
        if self._calls == 2:
            self._is_normalised = isinstance(module, NORMS)
        if self._calls > 1 and self._row is not None and name == self._row[0]:
            self._row = (*self._row[:2], None)  # a loop over time: each row may begin with the same token
        if self._calls > 1 or not isinstance(module, LAYERS):
            return
        with untracked():
            tensor = output_tensor(args[0] if args else None)  # of a packed sequence its data, never the hidden state
            if tensor is None or not tensor.is_floating_point() or tensor.dim() < 2:
                return
            rows = 1 if isinstance(module, nn.RNNBase) and not module.batch_first and tensor.dim() == 3 else 0
            self._row = (name, *_measure_input(tensor, rows))


# Sizes and spread; `rows` is the dimension of the rows.
def _measure_input(tensor: Tensor, rows: int) -> tuple[Tensor, Tensor | None]:
    if tensor.numel() > MAX_INPUT_VALUES:
        tensor = tensor.narrow(rows, 0, max(1, tensor.size(rows) * MAX_INPUT_VALUES // tensor.numel()))
    low, high = torch.aminmax(tensor)
    norm = torch.linalg.vector_norm(tensor, dtype=torch.float32 if tensor.dtype in HALVES else None)
    rms = norm.float() / tensor.numel() ** 0.5
    spread = None
    if tensor.size(rows) >= MIN_ROWS:
        spread = (tensor.amax(rows) - tensor.amin(rows)).amax().reshape(1).float()
    return torch.stack((low.float(), high.float(), rms)), spread


PROBES: tuple[ProbeFactory, ...] = (
    lambda context: ActivationProbe(context.guard, context.layers, context.models),
    lambda context: InputProbe(context.guard, context.layers, context.models),
)
