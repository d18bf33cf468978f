"""Dimensions that are mixed up: what layers take for the batch, what attention is normalised over, equal output rows.

Guarantees: no device is waited for; no hook for saved tensors runs; of inputs only the shape is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from mlflow_stability.kinds.first_look.dimensions import (
    AttentionDim,
    AttentionDimFacts,
    BatchAsSequence,
    BatchAsSequenceFacts,
)
from mlflow_stability.probes.first_look.loss_graph import (
    COMBINING,
    PER_CLASS,
    PER_EXAMPLE,
    dim_of,
    node_name,
    nodes_behind,
    nodes_of,
    saved,
    shape_of,
    undivided,
)
from mlflow_stability.probes.hooks.module_calls import MODULE_CALLS
from mlflow_stability.probes.hooks.thread_state import untracked
from mlflow_stability.probes.model_discovery import names_of_modules
from mlflow_stability.probes.step.readback import Block
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals
from mlflow_stability.vocabulary.result import Finding, Severity

SIGNALS = signals(
    SignalType(
        "output_spread",
        "largest difference between rows of what the loss function gets; 0: all rows are the same; first steps",
    ),
    topic="loss_statistics",
)
SPREAD = (Signal("output_spread", ""),)
MIN_ROWS = 8
MAX_VALUES = 2**22  # of larger outputs the first rows are compared
MAX_LAYERS = 64
SEQUENCE_STEPS, ATTENTION_STEPS = BatchAsSequence().steps, AttentionDim().steps
# Nodes between a softmax and the product with the values that keep both dimensions of the scores.
KEEPING = frozenset(("Expand", "View", "UnsafeView", "ReshapeAlias", "Clone", "ToCopy", "NativeDropout", "Mul"))


class SequenceLayout:
    """Calls of layers with `batch_first=False`, beside the rows of the loss."""

    def __init__(self) -> None:
        self._watched: list[Callable[[], None]] = []
        self._shapes: dict[tuple[int, int], int] = {}  # sequence and batch, as the layers take them, by identity
        self._names: dict[int, str] = {}
        self._steps = 0  # in a row
        self._step = 0

    def watch(self, models: Sequence[Module]) -> None:
        """Begin to watch recurrent and attention layers that expect the sequence first."""
        modules = (module for model in models for module in Module.modules(model))
        layers = [module for module in modules if isinstance(module, nn.RNNBase | nn.MultiheadAttention)]
        layers = list({id(layer): layer for layer in layers if not layer.batch_first}.values())
        if 0 < len(layers) <= MAX_LAYERS:
            self._names = names_of_modules(models)
            self._watched = [MODULE_CALLS.watch(layer, self._called) for layer in layers]

    def close(self) -> None:
        while self._watched:
            self._watched.pop()()

    def note(self, loss: Tensor, step: int) -> Finding | None:
        """Look at a loss; return a finding after enough steps, and watch no longer once it is known."""
        if not self._watched:
            return None
        shapes, self._shapes = self._shapes, {}
        rows = _rows_of(loss)
        if not shapes or rows is None:
            return None
        if any(length != rows or batch in (1, rows) for length, batch in shapes):
            self.close()
            return None
        self._steps += step != self._step
        self._step = step
        if self._steps < SEQUENCE_STEPS:
            return None
        self.close()
        (_, batch), layer = next(iter(shapes.items()))
        facts = BatchAsSequenceFacts(self._names.get(layer, ""), rows, batch)
        return Finding.at(facts, step, Severity.WARNING, place=facts.module, remedies=BatchAsSequence.remedies)

    def _called(self, module: Module, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or given.dim() != 3 or not torch.is_grad_enabled():
            return
        key = args[1] if isinstance(module, nn.MultiheadAttention) and len(args) > 1 else given
        if isinstance(key, Tensor) and key.shape[:2] == given.shape[:2]:  # attention to another sequence is left out
            self._shapes.setdefault((given.size(0), given.size(1)), id(module))


def _rows_of(loss: Tensor) -> int | None:
    """Return the number of rows of all loss functions, if each has one value or one set of classes for each row."""
    rows = set()
    for _, name, inputs in nodes_of(loss.grad_fn, COMBINING):
        if name in PER_EXAMPLE:
            shape = shape_of(next((source for source in inputs if source is not None), None))
            if name in PER_CLASS:  # similarities of all pairs have rows for more than one input
                is_flat = len(shape) == 2 and shape[1] not in (shape[0], shape[0] - 1)
            else:
                is_flat = shape[1:] in ((), (1,))
            rows.add(shape[0] if shape and is_flat else 0)
    return rows.pop() or None if len(rows) == 1 else None


class AttentionScores:
    """Softmax of attention over the queries, in the graphs of losses."""

    def __init__(self) -> None:
        self._steps = 0  # in a row
        self._is_over = False
        self._step = 0

    def note(self, loss: Tensor, step: int) -> Finding | None:
        """Look at the first loss of a step; return a finding after enough steps."""
        if self._is_over or step == self._step:
            return None
        self._step = step
        sizes = [size for node in nodes_behind(loss.grad_fn) if (size := _normalised_over_queries(node))]
        self._steps += 1
        self._is_over = not sizes or self._steps >= ATTENTION_STEPS
        if not sizes or not self._is_over:
            return None
        facts = AttentionDimFacts(sizes[0])
        return Finding.at(facts, step, Severity.WARNING, remedies=AttentionDim.remedies)


def _normalised_over_queries(node: Any) -> int:
    """Return the number of positions, if a product has the softmax over the queries on its left; else 0."""
    if node_name(node) != "Bmm":
        return 0
    node = node.next_functions[0][0]
    size = shape_of(node)[-2:]
    while node_name(node) in KEEPING and shape_of(node)[-2:] == size:
        inputs = [following for following, _ in node.next_functions if following is not None]
        if len(inputs) != 1:
            return 0
        node = inputs[0]
    shape = shape_of(node)
    is_square = node_name(node) == "Softmax" and len(shape) > 2 and shape[-2:] == size and size[0] == size[1] > 1
    return size[0] if is_square and dim_of(node, -1) == len(shape) - 2 else 0


class OutputRows:
    """What loss functions get: the largest difference between its rows."""

    def __init__(self) -> None:
        self._spreads: list[Tensor | None] = []

    def clear(self) -> None:
        self._spreads = []

    def note(self, loss: Tensor) -> None:
        output = _output_of(loss)
        if output is None or output.dim() == 0 or len(output) < MIN_ROWS:
            self._spreads.append(None)
            return
        with untracked():
            output = output.detach()
            if output.numel() > MAX_VALUES:
                output = output[: max(MIN_ROWS, len(output) * MAX_VALUES // output.numel())]
            self._spreads.append((output.amax(0) - output.amin(0)).amax().reshape(1).float())

    def blocks(self) -> list[Block]:
        spreads, self._spreads = self._spreads, []
        measured = [spread for spread in spreads if spread is not None]
        if not measured or len(measured) < len(spreads) or len({spread.device for spread in measured}) > 1:
            return []
        with untracked():
            return [Block(SPREAD, torch.stack(measured).amax(0))]


def _output_of(loss: Tensor) -> Tensor | None:
    """Return what the loss function gets, if the loss is one loss function alone."""
    node, _ = undivided(loss)
    if node_name(node) not in PER_EXAMPLE:
        return None
    is_target = node.next_functions[0][0] is None  # the script has exchanged prediction and target
    output = saved(node, "target" if is_target else "self")
    return output if output is not None and output.is_floating_point() else None
