"""Statistics of module outputs: mean, deviation, extremes, kurtosis, dead, saturated and non-finite units.

In: the forward pass of a measured step. Out: ten quantities for each module that is a leaf or has parameters of its
own. Guarantees: outputs are read before anything can change them in place; only samples are kept, at most four
million values together; no random number is drawn.

The first call of a module counts, and the first of several output tensors. The outermost module is not measured. A
plain call of `torch.relu` in a `forward` is visible only in the output of the module around it, or of a pooling
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.activations.activation_samples import (
    ActivationSample,
    OutputKind,
    axis_of,
    nature_of,
    sample_of,
)
from mlflow_stability.probes.activations.activation_statistics import ALWAYS, QUANTITIES, statistics_of
from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.pass_hooks import PassHooks
from mlflow_stability.probes.hooks.untracked_ops import is_measurable, untracked
from mlflow_stability.probes.objects.watched_modules import WatchedModules
from mlflow_stability.probes.probe import Guard, ProbeFactory, next_sampled_step
from mlflow_stability.probes.tensors.tensor_sums import on_device
from mlflow_stability.vocabulary.measured import Signal

MOST_LOOKED_AT = 8
"""Further back in a tuple nothing is looked for."""


def output_tensor(output: Any) -> Tensor | None:
    """The first tensor of numbers in it, but not deeper than one level."""
    if isinstance(output, Tensor):
        return output if is_measurable(output) else None
    parts: Iterable[Any] = ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, (tuple, list)):
        parts = output
    return next((each for each in islice(parts, MOST_LOOKED_AT) if is_measurable(each)), None)


FIRST_LOOK = 10
MOST_VALUES = 2**16
"""How many values of one output its statistics are made of, ..."""
MOST_TOGETHER = 2**22
"""... and how many all samples have together."""
MOST_MODULES = 1024
"""Of more modules every second, or third, is looked at."""
MOST_LAYOUTS = 16


class ActivationProbe:
    """The activations of one training."""

    part = "activations"

    def __init__(self, guard: Guard, every: int = 100, models: Callable[[], Sequence[Module]] | None = None) -> None:
        self.every = every
        """Every how many captures of a model; and once at the tenth."""
        self._measure = guard(self.part, self._take)
        self._places = WatchedModules(models)
        self._hooks: PassHooks | None = None
        self._alive: Callable[[], bool] = _over
        """Knows the frame of the call, and by it all that was called: not to be kept beyond it."""
        self._names: dict[int, tuple[str, OutputKind]] = {}
        """Modules of the pass that is open, by identity."""
        self._quota = MOST_VALUES
        self._axes: dict[torch.Size, int] = {}
        """Where the units of outputs of each shape were last known to lie."""
        self._found: dict[str, tuple[OutputKind, ActivationSample]] = {}
        self._whole: dict[str, tuple[OutputKind, ActivationSample]] = {}
        """Those of passes that have ended as they should."""
        self._layouts: dict[tuple[object, ...], tuple[tuple[Signal, ...], tuple[int, ...]]] = {}

    def due(self, own_step: int) -> bool:
        """Whether to look."""
        return own_step == FIRST_LOOK or own_step % self.every == 0

    def next_due(self, own_step: int) -> int:
        """The next turn that is due."""
        return next_sampled_step(own_step, FIRST_LOOK, self.every)

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        """Watch each module that is a leaf or has parameters of its own."""
        self._hooks = hooks = PassHooks()
        self._alive = alive
        self._axes.clear()
        chosen = [(name, each, nature) for name, each in self._places.inside(root) if (nature := _looked_at(each))]
        chosen = chosen[:: -(-len(chosen) // MOST_MODULES) or 1]
        self._quota = max(min(MOST_VALUES, MOST_TOGETHER // max(len(chosen), 1)), 1)
        for name, module, nature in chosen:
            self._names[id(module)] = name, nature
            hooks.after(module, self._measure)

    def close(self, whole: bool) -> None:
        """Stop watching."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks, self._alive = None, _over
        self._names.clear()
        if whole:
            self._whole.update(self._found)
        self._found.clear()

    def blocks(self) -> Sequence[Block]:
        """What was measured, a block for each device."""
        found = dict(self._whole)
        self._whole.clear()
        by_device: dict[torch.device, list[str]] = {}
        for name, (_, sample) in found.items():
            by_device.setdefault(sample.values.device, []).append(name)
        with untracked():
            return [self._block(device, names, found) for device, names in by_device.items()]

    def finish(self) -> None:
        """Nothing is on its way; what nobody has asked for is let go."""
        self._whole.clear()

    def _take(self, module: Module, _args: tuple[Any, ...], output: Any) -> None:
        known = self._names.get(id(module))
        if known is None or known[0] in self._found or not self._alive():
            return
        name, nature = known
        with untracked():
            tensor = output_tensor(output)
            if tensor is None or not tensor.is_floating_point():
                return
            axis = axis_of(tensor, nature, self._axes)
            if axis is not None and nature.axis is not None:
                self._axes[tensor.shape] = axis
            self._found[name] = nature, sample_of(tensor, nature, axis, self._quota)

    def _block(
        self, device: torch.device, names: Sequence[str], found: dict[str, tuple[OutputKind, ActivationSample]]
    ) -> Block:
        natures = [found[name][0] for name in names]
        samples = [found[name][1] for name in names]
        of_units = tuple(each.units is not None for each in samples)
        key = device, tuple(names), of_units
        if key not in self._layouts:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = _layout(names, natures, of_units)
        signals, places = self._layouts[key]
        table: Tensor = statistics_of(samples, natures).flatten()
        return Block(signals, table.index_select(0, on_device(places, device, torch.long)))


def _over() -> bool:
    """No pass is going on."""
    return False


def _looked_at(module: Module) -> OutputKind | None:
    """What is known of a module's output; None where it is not looked at."""
    leaf = not module._modules
    owns = any(each is not None for each in module._parameters.values())
    return nature_of(module) if leaf or owns else None


def _layout(
    names: Sequence[str], natures: Sequence[OutputKind], of_units: Sequence[bool]
) -> tuple[tuple[Signal, ...], tuple[int, ...]]:
    """What is told of each module, and where it stands in the table of all numbers of all modules."""
    signals: list[Signal] = []
    places: list[int] = []
    for column, quantity in enumerate(QUANTITIES):
        for row, (name, nature, has_units) in enumerate(zip(names, natures, of_units, strict=True)):
            told = {
                "activation_saturation": nature.saturates,
                "activation_dead": has_units and (nature.rectifies or nature.may_rectify),
                "activation_dormant": has_units,
            }
            if column < ALWAYS or told[quantity]:
                signals.append(Signal(quantity, name))
                places.append(row * len(QUANTITIES) + column)
    return tuple(signals), tuple(places)


PROBES: tuple[ProbeFactory, ...] = (lambda context: ActivationProbe(context.guard, context.layers, context.models),)
