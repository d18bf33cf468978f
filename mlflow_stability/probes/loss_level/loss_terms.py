"""Follows the terms of a loss: how many it adds up, and the number that the script multiplies one of them by.

A term that is added, or whose weight grows, raises a loss without any trouble. Both are read from the autograd graph of
the losses of each step; of several, the one with the most terms counts.

Guarantees: no device is waited for, nothing of the training is kept alive, and a loss whose terms change with each
batch is soon no longer looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.first_look.loss_graph import ARRANGING, node_name, saved
from mlflow_stability.probes.probe import BaseProbe
from mlflow_stability.probes.step.readback import value_on_host
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType

SIGNALS = (
    SignalType("loss_terms", "number of terms that the loss adds up; when it changes", "loss_statistics"),
    SignalType(
        "loss_weight",
        "number that the script multiplies a term of the loss by, of the first term whose number changes; when it "
        "changes, every 10 steps at most",
        "loss_statistics",
    ),
)
TERMS, WEIGHT = (Signal("loss_terms", ""),), (Signal("loss_weight", ""),)
WEIGHT_EVERY = 10  # steps between two records of a weight
MAX_NODES = 16  # from the loss on: a penalty on each parameter has hundreds
ADDING, PASSED = frozenset(("Add", "Sub")), ARRANGING | {"Mean", "Sum", "Neg"}
THROUGH = ADDING | PASSED | {"Mul", "Div"}
MAX_CHANGES = 16  # of the number of terms; more are lengths of sequences
MAX_TURNS = 8  # of a weight that rises and falls: more are values of a batch


class Terms(NamedTuple):
    number: int
    weights: tuple[float, ...]


def terms_of(loss: Tensor) -> Terms:
    """Return the number of terms that a loss adds up, and the numbers on the host that they are multiplied by."""
    waiting: list[tuple[Any, bool]] = [(loss.grad_fn, False)]
    looked_at, number, weights = 0, 0, []
    while waiting and looked_at < MAX_NODES:
        node, is_term = waiting.pop(0)
        looked_at += 1
        name = node_name(node)
        if name not in THROUGH:
            number += 1
            continue
        inputs = [following for following, _ in node.next_functions if following is not None]
        if name in ADDING:
            waiting += [(following, True) for following in inputs]
            continue
        factor = 1.0 if name in PASSED else _number_of(node)
        if factor is None or len(inputs) != 1:
            number += 1
            continue
        if is_term and name not in PASSED:  # a factor of the whole loss is a share of a batch, or a loss scale
            weights.append(1 / factor if name == "Div" and factor else factor)
        waiting.append((inputs[0], is_term))
    return Terms(number, tuple(weights))


def _number_of(node: Any) -> float | None:
    """Return the number on the host that a node multiplies or divides by, else None."""
    for name in ("other", "self"):
        other = saved(node, name)
        if other is not None and other.numel() == 1 and not other.requires_grad:
            return value_on_host(other)
    return None


class LossTerms(BaseProbe):
    part = "terms of the loss"

    def __init__(self, step: Callable[[], int], ask: Callable[[], None]) -> None:
        self._step = step
        self._ask = ask  # makes the scheduler ask at the next step whether this is due
        self._looked_at = 0
        self._most = 0  # terms of a loss of this step
        self._counted_at = -1  # the step at which a number of terms was recorded last
        self._is_owed = False  # another number of the same step, to be recorded at the next one
        self._last: Terms | None = None
        self._index: int | None = None  # of the weight that is followed
        self._weight = 0.0  # the last one that was recorded
        self._weight_step = 0
        self._changes = self._rises = self._falls = 0
        self._blocks: list[Block] = []

    def at_loss(self, tensors: Any) -> None:
        step = self._step()
        if self._changes > MAX_CHANGES:
            return
        loss = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
        if not isinstance(loss, Tensor) or loss.grad_fn is None:
            return
        terms, last = terms_of(loss), self._last
        if step != self._looked_at:
            self._looked_at = step
            if self._is_owed and last is not None:
                self._record_number(last.number)
            if last is not None and self._most < last.number:  # in all of the step before
                self._count(last._replace(number=self._most))
                last = self._last
            self._most = 0
        if last is None or terms.number > last.number:
            self._count(terms)
        elif not self._most and terms.weights and len(terms.weights) == len(last.weights):
            self._follow(last.weights, terms.weights, step)
            self._last = last._replace(weights=terms.weights)
        self._most = max(self._most, terms.number)

    def _count(self, terms: Terms) -> None:
        self._changes += self._last is not None
        self._last = terms
        self._record_number(terms.number)

    def _record_number(self, number: int) -> None:
        """Record it once a step: the halves of a GAN have losses of their own."""
        step = self._step()
        self._is_owed = step == self._counted_at
        if not self._is_owed:
            self._counted_at = step
            self._record(Block(TERMS, (float(number),)))

    def due(self, _step: int) -> bool:
        return bool(self._blocks)

    def next_due(self, _step: int) -> int:
        return 1 << 62

    def blocks(self, _step: int) -> Sequence[Block]:
        blocks, self._blocks = self._blocks, []
        return blocks

    def _record(self, block: Block) -> None:
        self._blocks.append(block)
        self._ask()

    def _follow(self, before: Sequence[float], now: Sequence[float], step: int) -> None:
        if self._index is None:
            if before == now:
                return
            self._index = next(index for index, pair in enumerate(zip(before, now, strict=True)) if pair[0] != pair[1])
            self._weight, self._weight_step = before[self._index], -WEIGHT_EVERY
        if min(self._rises, self._falls) > MAX_TURNS or self._index >= len(now):
            return
        weight = now[self._index]
        if weight != self._weight and step - self._weight_step >= WEIGHT_EVERY:
            self._rises += weight > self._weight
            self._falls += weight < self._weight
            self._weight, self._weight_step = weight, step
            self._record(Block(WEIGHT, (weight,)))
