"""Statistics of what the first layer of a model is given: its size, and whether it differs between the rows of a batch.

In: the forward pass of a measured step. Out: four quantities at the place of the first layer, where that is a linear
layer, a convolution or a recurrent layer. Guarantees: values are only reduced, and stay on their device; no random
number is drawn. Behind an embedding, and before or behind a normalisation, the size is not measured: it says nothing
about the data, or does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules import batchnorm, conv, instancenorm

from mlflow_stability.probes.activations.activation_probe import FIRST_LOOK, output_tensor
from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.pass_hooks import PassHooks
from mlflow_stability.probes.hooks.untracked_ops import untracked
from mlflow_stability.probes.objects.watched_modules import WatchedModules
from mlflow_stability.probes.probe import Guard, ProbeFactory, next_sampled_step
from mlflow_stability.vocabulary.measured import Signal, SignalType

SIGNALS = (
    SignalType("input_low", "lowest input of the first layer; every `layers_every_n_steps`", "activations"),
    SignalType("input_high", "highest input of the first layer", "activations"),
    SignalType("input_rms", "root mean square of the inputs of the first layer", "activations"),
    SignalType(
        "input_spread",
        "largest difference between rows of the input of the first layer; 0: all rows are the same",
        "activations",
    ),
)
SIZES = ("input_low", "input_high", "input_rms")
SPREAD = "input_spread"
NORMS = (batchnorm._NormBase, instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
LAYERS = (nn.Linear, conv._ConvNd, nn.RNNBase)
FEWEST_ROWS = 8
"""Minimum number of rows of which it is said that they are the same."""
MAX_VALUES = 2**24
"""Of larger inputs the first rows are measured."""


class InputProbe:
    """The input of the first layer of each model."""

    part = "inputs"

    def __init__(self, guard: Guard, every: int = 100, models: Callable[[], Sequence[Module]] | None = None) -> None:
        self.every = every
        """Every how many captures of a model; and once at the tenth."""
        self._look = guard(self.part, self._take)
        self._places = WatchedModules(models)
        self._hooks: PassHooks | None = None
        self._alive: Callable[[], bool] = _over
        self._names: dict[int, str] = {}
        """Modules of the pass that is open, by identity."""
        self._is_embedded = False
        """Whether an embedding was called before."""
        self._row: tuple[str, Tensor, Tensor | None] | None = None
        """Of the first layer of this pass: its name, its sizes, its spread."""
        self._is_normalised = False
        """Whether a normalisation follows it."""
        self._calls = 0
        self._blocks: list[Block] = []

    def due(self, own_step: int) -> bool:
        """Whether to look."""
        return own_step == FIRST_LOOK or own_step % self.every == 0

    def next_due(self, own_step: int) -> int:
        """The next turn that is due."""
        return next_sampled_step(own_step, FIRST_LOOK, self.every)

    def open(self, root: Module, _step: int, alive: Callable[[], bool]) -> None:
        """Watch each module that may be the first one."""
        self._hooks = hooks = PassHooks()
        self._alive = alive
        self._is_embedded = self._is_normalised = False
        self._row, self._calls = None, 0
        for name, module in self._places.inside(root):
            owns = any(parameter is not None for parameter in module._parameters.values())
            if owns or isinstance(module, NORMS):
                self._names[id(module)] = name
                hooks.before(module, self._look)

    def close(self, whole: bool) -> None:
        """Stop watching."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks, self._alive = None, _over
        self._names.clear()
        row, self._row = self._row, None
        if whole and row is not None:
            self._blocks += self._blocks_of(*row)

    def blocks(self) -> Sequence[Block]:
        """What was measured."""
        found, self._blocks = self._blocks, []
        return found

    def finish(self) -> None:
        """Nothing is on its way; what nobody has asked for is let go."""
        self._blocks = []

    def _take(self, module: Module, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        name = self._names.get(id(module))
        if name is None or not self._alive():
            return
        if isinstance(module, EMBEDDINGS) and not self._calls:
            self._is_embedded = True
            return
        self._calls += 1
        if self._calls == 2:
            self._is_normalised = isinstance(module, NORMS)
        if self._calls > 1 and self._row is not None and name == self._row[0]:
            # A loop over time: each row may begin with the same token.
            self._row = (*self._row[:2], None)
        if self._calls > 1 or not isinstance(module, LAYERS):
            return
        with untracked():
            given = output_tensor(args)
            if given is None or not given.is_floating_point() or given.dim() < 2:
                return
            rows = 1 if isinstance(module, nn.RNNBase) and not module.batch_first and given.dim() == 3 else 0
            self._row = (name, *_measured(given, rows))

    def _blocks_of(self, name: str, sizes: Tensor, spread: Tensor | None) -> list[Block]:
        found = [] if spread is None else [Block((Signal(SPREAD, name),), spread)]
        if not self._is_embedded and not self._is_normalised:
            found.append(Block(tuple(Signal(quantity, name) for quantity in SIZES), sizes))
        return found


def _measured(given: Tensor, rows: int) -> tuple[Tensor, Tensor | None]:
    """Sizes and spread; `rows`: the dimension of the rows."""
    if given.numel() > MAX_VALUES:
        given = given.narrow(rows, 0, max(1, given.size(rows) * MAX_VALUES // given.numel()))
    low, high = torch.aminmax(given)
    rms = torch.linalg.vector_norm(given, dtype=torch.float32) / given.numel() ** 0.5
    spread = None
    if given.size(rows) >= FEWEST_ROWS:
        spread = (given.amax(rows) - given.amin(rows)).amax().reshape(1).float()
    return torch.stack((low.float(), high.float(), rms)), spread


def _over() -> bool:
    """No pass is going on."""
    return False


PROBES: tuple[ProbeFactory, ...] = (lambda context: InputProbe(context.guard, context.layers, context.models),)
