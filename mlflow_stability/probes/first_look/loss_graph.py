"""What the autograd graph of a loss says about its loss function, inputs and terms; of values only numbers on the host.

A term that is added, or whose weight grows, raises a loss without any trouble: `LossTerms` follows how many terms a
loss adds up, and the number that the script multiplies one of them by. Of several losses of a step, the one with the
most terms counts. Guarantees: no device is waited for, nothing of the training is kept alive, and a loss whose terms
change with each batch is soon no longer looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.nn import Module

from mlflow_stability.kinds.first_look.loss_function import (
    Activation,
    LossFunction,
    LossInputFacts,
    LossSum,
    LossSumFacts,
    remedies_for,
)
from mlflow_stability.probes.hooks.thread_state import is_measurable
from mlflow_stability.probes.model_discovery import plain_name
from mlflow_stability.probes.probe import Probe
from mlflow_stability.probes.step.readback import Block, value_on_host
from mlflow_stability.vocabulary.measured.signal import Signal
from mlflow_stability.vocabulary.measured.signal_type import SignalType
from mlflow_stability.vocabulary.result import Finding, Severity

MAX_NODES = 64  # from the loss on: enough for the sum of a few losses
MAX_GRAPH = 4096  # nodes, where the whole graph is looked at
MAX_RESHAPES = 8  # between an activation and the loss function
# Nodes that combine values or losses to one loss.
COMBINING = frozenset(
    ("Add", "Sub", "Mul", "Div", "Neg", "Mean", "Sum", "Stack", "Cat", "Squeeze", "Unsqueeze", "ToCopy", "View")
)
# Nodes that only reshape values or convert their type.
ARRANGING = frozenset(
    ("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "Squeeze", "Unsqueeze", "ToCopy", "Clone")
)
RESHAPING = frozenset(("View", "UnsafeView", "ReshapeAlias", "ToCopy", "Clone"))  # which keep the order of values
# Nodes between an activation and a loss function: these, or nodes that leave values out, as a mask does rows.
BETWEEN = ARRANGING | {"Index", "IndexSelect", "Select", "Slice"}
LOSSES: Mapping[str, LossFunction] = {
    "NllLoss": LossFunction.NLL,
    "NllLoss2D": LossFunction.NLL,
    "BinaryCrossEntropyWithLogits": LossFunction.BINARY_CROSS_ENTROPY,
    "CtcLoss": LossFunction.CTC,
}
ACTIVATIONS: Mapping[str, Activation] = {
    "Softmax": Activation.SOFTMAX,
    "Sigmoid": Activation.SIGMOID,
    "Relu": Activation.RELU,
    "Tanh": Activation.TANH,
    "Addmm": Activation.LINEAR,
    "Convolution": Activation.LINEAR,
}
# Activations that each loss function should not get.
UNEXPECTED: Mapping[LossFunction, frozenset[Activation]] = {
    LossFunction.CROSS_ENTROPY: frozenset((Activation.SOFTMAX, Activation.SIGMOID, Activation.RELU, Activation.TANH)),
    LossFunction.BINARY_CROSS_ENTROPY: frozenset((Activation.SOFTMAX, Activation.SIGMOID, Activation.RELU)),
    LossFunction.SIGMOID: frozenset((Activation.SOFTMAX, Activation.SIGMOID, Activation.RELU)),
    LossFunction.NLL: frozenset((Activation.SOFTMAX, Activation.LINEAR)),
    LossFunction.CTC: frozenset((Activation.SOFTMAX, Activation.LINEAR)),
}
ROUNDING = frozenset(("Round", "Floor", "Ceil", "Sign"))  # whose gradient is zero
NONE, MEAN, SUM = 0, 1, 2  # ``reduction="mean"`` in a node
CLASSES_DIM = 1  # of the input of `nll_loss`
WRAPPED = 2**64  # added to a negative dimension in a node
_UNKNOWN = object()  # the hook of a saved tensor, in a torch that does not tell
PER_CLASS = frozenset(("NllLoss", "NllLoss2D"))
AROUND_PICKED = ARRANGING | {"Neg", "Mean"}
MODULES: Mapping[Activation, tuple[type[Module], ...]] = {
    Activation.SOFTMAX: (nn.Softmax, nn.Softmax2d),
    Activation.SIGMOID: (nn.Sigmoid,),
    Activation.RELU: (nn.ReLU,),
    Activation.TANH: (nn.Tanh,),
}


def loss_input(loss: Tensor, models: Sequence[Module], step: int) -> Finding | None:
    """Return a finding if a loss function gets the output of an activation that it does not expect."""
    if (facts := _of_softmax(loss)) is not None:
        return Finding.at(facts, step, Severity.WARNING, remedies=remedies_for(facts))
    for function, _, node in loss_functions(loss):
        activation = _activation_of(source_of(node, BETWEEN))
        if function is LossFunction.NLL and is_over_other_dim(node):
            activation = Activation.LOG_SOFTMAX
        elif activation not in UNEXPECTED[function]:
            continue
        kinds = MODULES.get(activation, ())
        named = (pair for model in models for pair in Module.named_modules(model))
        # Of two sigmoids, the only module may be the right one.
        names = [name for name, module in named if isinstance(module, kinds) and function is not LossFunction.SIGMOID]
        facts = LossInputFacts(function, activation, plain_name(names[0]) if len(names) == 1 else "")
        return Finding.at(facts, step, Severity.WARNING, place=facts.module, remedies=remedies_for(facts))
    if any(_picks_over_other_dim(node, name) for node, name, _ in nodes_of(loss.grad_fn, COMBINING)):
        facts = LossInputFacts(LossFunction.NLL, Activation.LOG_SOFTMAX)
        return Finding.at(facts, step, Severity.WARNING, remedies=remedies_for(facts))
    return None


def _activation_of(node: Any) -> Activation | None:
    if node_name(node) == "Exp" and logarithm_of(node.next_functions[0][0]) is not None:
        return Activation.SOFTMAX
    return ACTIVATIONS.get(_name_of_layer(node))


def _of_softmax(loss: Tensor) -> LossInputFacts | None:
    for node, name, inputs in nodes_of(loss.grad_fn, COMBINING | {"Rsub"}):
        softmax = source_of(inputs[0]) if name in PER_EXAMPLE else node
        if node_name(softmax) in ROUNDING:
            return LossInputFacts(LOSSES.get(name, LossFunction.OTHER), Activation.ROUNDED)
        if node_name(softmax) in ("Softmax", "LogSoftmax"):
            shape = shape_of(softmax)
            if math.prod(shape) > 1 == shape[dim_of(softmax, CLASSES_DIM)]:
                return LossInputFacts(LossFunction.CROSS_ENTROPY, Activation.ONE_VALUE)
        # `kl_div` is the target times its logarithm, less the target times the input.
        if name == "Xlogy" and node_name(source_of(inputs[0])) == "LogSoftmax":
            return LossInputFacts(LossFunction.KL, Activation.LOG_TARGET)
        if name == "Sub" and inputs[0] is None and node_name(inputs[-1]) == "Mul":
            factors = [factor for factor, _ in inputs[-1].next_functions]
            is_same = len({shape_of(part) for part in (node, inputs[-1], factors[-1])}) == 1
            if factors[0] is None and node_name(factors[-1]) == "Softmax" and is_same:
                return LossInputFacts(LossFunction.KL, Activation.SOFTMAX)
    return None


def is_over_other_dim(node: Any, classes_dim: int = CLASSES_DIM) -> bool:
    """Whether a node is the logarithm of a softmax over another dimension than that of the classes."""
    return _is_over_other_dim(logarithm_of(node), node, classes_dim)


def _is_over_other_dim(softmax: Any, node: Any, classes_dim: int = CLASSES_DIM) -> bool:
    shape, given = shape_of(softmax), shape_of(node)
    if shape != given:  # flattened to rows and classes, which have to be the last dimension before, too
        if len(given) != 2 or classes_dim != CLASSES_DIM or shape[-1:] != given[-1:]:
            return False
        classes_dim = len(shape) - 1
    return len(shape) > 1 and dim_of(softmax, classes_dim) != classes_dim


def _picks_over_other_dim(node: Any, name: str) -> bool:
    """Whether a cross entropy that is written with an index has its softmax over another dimension than the index."""
    is_picked_first = name == "Log"  # the logarithm is taken of what the index picks
    if is_picked_first:
        node = _behind_logarithm(node)
        name = node_name(node)
    source = node.next_functions[0][0] if name in ("Gather", "Index") else None
    softmax, shape = logarithm_of(source), shape_of(source)
    if is_picked_first:
        softmax = source_of(source) if node_name(source_of(source)) == "Softmax" else None
    if softmax is None or len(shape) < 2:
        return False
    normalised, picked = dim_of(softmax, CLASSES_DIM), dim_of(node, CLASSES_DIM) if name == "Gather" else CLASSES_DIM
    if shape_of(softmax)[normalised] == shape[picked]:
        return False  # of a square, such as the similarities of pairs, one value of each column may be meant
    if name == "Gather":  # of a softmax over the last dimension, positions may be picked first, and classes later
        return normalised != len(shape_of(softmax)) - 1 and _is_over_other_dim(softmax, source, picked)
    return len(shape) == 2 and shape_of(node) == shape[:1] and _is_over_other_dim(softmax, source)


def dim_of(node: Any, default: int) -> int:
    """Return the dimension that a node saved, from 0 on."""
    dim: int = getattr(node, "_saved_dim", default)
    dim = dim - WRAPPED if dim >= WRAPPED // 2 else dim  # a negative number, as its node has it
    return dim % max(1, len(shape_of(node)))


def logarithm_of(node: Any) -> Any:
    """Return the node of the softmax whose logarithm this is, or rows of it, else None; a number may be added."""
    while node_name(node) in RESHAPING or _picks_rows(node):
        node = node.next_functions[0][0]
    if node_name(node) == "LogSoftmax":
        return node
    if node_name(node) != "Log":
        return None
    node = _behind_logarithm(node)
    return node if node_name(node) == "Softmax" else None


def _picks_rows(node: Any) -> bool:
    is_index = node_name(node) in ("Index", "IndexSelect")
    return is_index and len(shape := shape_of(node)) > 1 and shape[-1:] == shape_of(node.next_functions[0][0])[-1:]


def _behind_logarithm(node: Any) -> Any:
    node = node.next_functions[0][0]
    while node_name(node) in ("Add", "Clamp", "ClampMin", "Squeeze"):
        node = node.next_functions[0][0]
    return node


def loss_functions(loss: Tensor) -> Iterator[tuple[LossFunction, Any, Any]]:
    """Yield the loss functions in the graph, with their node and that of their input."""
    # Not through `Addmm`, which is a layer of the model.
    for node, name, inputs in nodes_of(loss.grad_fn, COMBINING):
        if name in LOSSES:
            source = inputs[0] if inputs else None
            softmax = logarithm_of(source)
            if softmax is not None and not is_over_other_dim(source):
                yield LossFunction.CROSS_ENTROPY, node, softmax.next_functions[0][0]
            else:
                yield LOSSES[name], node, source
        elif name == "BinaryCrossEntropy" and node_name(sigmoid := source_of(inputs[0], BETWEEN)) == "Sigmoid":
            yield LossFunction.SIGMOID, node, sigmoid.next_functions[0][0]
        elif name == "LogSoftmax":  # with probabilities as targets, cross entropy is a sum of products
            yield LossFunction.CROSS_ENTROPY, node, inputs[0]


def nodes_of(first: Any, through: Container[str]) -> Iterator[tuple[Any, str, list[Any]]]:
    """Yield a node and those behind nodes `through`, the nearest first, with their names and inputs."""
    waiting, looked_at = [first], 0
    while waiting and looked_at < MAX_NODES:
        node = waiting.pop(0)
        if node is None:
            continue
        looked_at += 1
        name, inputs = node_name(node), [following for following, _ in node.next_functions]
        yield node, name, inputs
        if name in through:
            waiting += inputs


def nodes_behind(node: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, without the given one; of a large graph the first ones."""
    waiting, seen = [node], {node}
    while waiting and len(seen) < MAX_GRAPH:
        for following, _ in waiting.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
                yield following


def source_of(node: Any, through: Container[str] = ARRANGING) -> Any:
    for _ in range(MAX_RESHAPES):
        if node_name(node) not in through:
            break
        node = node.next_functions[0][0]
    return node


def _name_of_layer(node: Any) -> str:
    """Return the name of a node; `Addmm` for a bias that is added to a product, as a linear layer does."""
    if node_name(node) == "Add" and len(node.next_functions) == 2:
        product, bias = (following for following, _ in node.next_functions)
        if node_name(source_of(product)) == "Mm" and node_name(bias) == "torch::autograd::AccumulateGrad":
            return "Addmm"
    return node_name(node)


def node_name(node: Any) -> str:
    """Return ``Softmax`` for ``SoftmaxBackward0``; empty for None."""
    return "" if node is None else str(node.name()).partition("Backward")[0]


class Chance(NamedTuple):
    """A loss that is a share of a mean cross entropy."""

    classes: int
    share: float  # 1, or less where the script divides it


def chance_of(loss: Tensor) -> Chance | None:
    """Return of how many classes this loss is a mean cross entropy; None for another loss."""
    node, share = undivided(loss)
    if node_name(node) in PER_CLASS:
        source = node.next_functions[0][0] if node is not None else None
        softmax, shape, dim = logarithm_of(source), shape_of(source), CLASSES_DIM
        is_mean = getattr(node, "_saved_reduction", None) == MEAN
    else:
        softmax = _of_picked(node)
        is_mean, shape, dim = softmax is not None, shape_of(softmax), dim_of(softmax, CLASSES_DIM)
    if softmax is None or not is_mean or len(shape) < 2:
        return None
    return Chance(shape[dim], share) if shape[dim] > 1 else None


def saved(node: Any, name: str) -> Tensor | None:
    """Return what a node saved for its backward pass, or None if a hook would have to run to get it.

    Where activations are checkpointed, such a hook runs the forward pass again.
    """
    holder = getattr(node, f"_raw_saved_{name}", None)
    if holder is None or getattr(holder, "unpack_hook", _UNKNOWN) is not None:
        return None  # packed by a hook, or by a torch that does not say so
    tensor = holder.data
    return tensor if is_measurable(tensor) else None


def undivided(loss: Tensor) -> tuple[Any, float]:
    """Return the node before it is scaled by numbers on the host, as for gradient accumulation, and the share left."""
    node, share = cast("Any", loss.grad_fn), 1.0
    while node_name(node) in ("Div", "Mul"):
        divisor = saved(node, "other")
        if divisor is None or divisor.numel() != 1 or divisor.requires_grad:
            break
        number = value_on_host(divisor)
        if not number:
            break
        share *= number if node_name(node) == "Mul" else 1 / number
        node = node.next_functions[0][0]
    return node, share


def _of_picked(node: Any) -> Any:
    """Return the softmax of a cross entropy that is written as the negated mean of what an index picks, else None."""
    names = []
    while node_name(node) in AROUND_PICKED:
        names.append(node_name(node))
        node = node.next_functions[0][0]
    if node_name(node) not in ("Gather", "Index") or names.count("Neg") != 1 or names.count("Mean") != 1:
        return None
    return logarithm_of(source_of(node.next_functions[0][0]))


OF_A_DIFFERENCE = frozenset(("Pow", "Abs", "Sqrt"))
# Nodes of a sum of losses.
ADDING = frozenset(("Add", "Sub"))
# Nodes whose input has a value for each example.
PER_EXAMPLE = frozenset((*LOSSES, "BinaryCrossEntropy", "MseLoss", "SmoothL1Loss", "HuberLoss"))


def loss_sum(loss: Tensor, step: int) -> Finding | None:
    """Return a finding if this loss, or a term of it, is a sum over many values that nothing divides."""
    node, share = undivided(loss)
    for term, _, _ in nodes_of(node, ADDING):
        values = _values_of_sum(term)
        if values * share >= LossSum().least:
            return Finding.at(LossSumFacts(values), step, Severity.INFO, remedies=LossSum.remedies)
    return None


def _values_of_sum(node: Any) -> int:
    """Return the number of values that a node adds up, if each is a loss; else 0."""
    name = node_name(node)
    source: Any = node.next_functions[0][0] if node.next_functions else None
    if name in PER_EXAMPLE and getattr(node, "_saved_reduction", None) == SUM:
        shape = shape_of(source)
        if name in PER_CLASS and len(shape) > 1:
            shape = (shape[0], *shape[2:])
        return math.prod(shape) if shape else 0
    if name != "Sum":
        return 0
    source_name = node_name(source)
    is_loss = source_name in PER_EXAMPLE and getattr(source, "_saved_reduction", None) == NONE
    if source_name in OF_A_DIFFERENCE:
        is_loss = node_name(source.next_functions[0][0]) == "Sub"
    shape = shape_of(source)
    return math.prod(shape) if is_loss and shape else 0


def shape_of(node: Any) -> tuple[int, ...]:
    metadata = getattr(node, "_input_metadata", None) if node is not None else None
    return tuple(metadata[0].shape) if metadata else ()


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
MAX_TERM_NODES = 16  # from the loss on: a penalty on each parameter has hundreds
PASSED = ARRANGING | {"Mean", "Sum", "Neg"}
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
    while waiting and looked_at < MAX_TERM_NODES:
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


class LossTerms(Probe):
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
