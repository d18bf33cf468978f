"""Reads from the graph of a loss what goes into the loss function; no value is read, and nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import Module

from mlflow_stability.kinds.first_look.loss_input import Activation, LossFunction, LossInputFacts, remedies_for
from mlflow_stability.probes.objects.module_names import plain_name
from mlflow_stability.vocabulary.result import Finding, Severity

MAX_NODES = 64
"""Number of nodes that are looked at, from the loss on: the sum of a few losses."""
MAX_RESHAPES = 8
"""Number of nodes between an activation and the loss function that only arrange values anew."""
COMBINING = frozenset(
    ("Add", "Sub", "Mul", "Div", "Neg", "Mean", "Sum", "Stack", "Cat", "Squeeze", "Unsqueeze", "ToCopy", "View")
)
"""Nodes that make one loss of several values or losses."""
ARRANGING = frozenset(
    ("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "Squeeze", "Unsqueeze", "ToCopy", "Clone")
)
"""Nodes that keep the values and arrange them anew, or convert their type."""
LOSSES: Mapping[str, LossFunction] = {
    "NllLoss": LossFunction.NLL,
    "NllLoss2D": LossFunction.NLL,
    "BinaryCrossEntropyWithLogits": LossFunction.BINARY_CROSS_ENTROPY,
}
ACTIVATIONS: Mapping[str, Activation] = {
    "Softmax": Activation.SOFTMAX,
    "Sigmoid": Activation.SIGMOID,
    "Relu": Activation.RELU,
    "Tanh": Activation.TANH,
    "Addmm": Activation.LINEAR,
    "Convolution": Activation.LINEAR,
}
UNEXPECTED: Mapping[LossFunction, frozenset[Activation]] = {
    LossFunction.CROSS_ENTROPY: frozenset((Activation.SOFTMAX, Activation.SIGMOID, Activation.RELU, Activation.TANH)),
    LossFunction.BINARY_CROSS_ENTROPY: frozenset((Activation.SOFTMAX, Activation.SIGMOID, Activation.RELU)),
    LossFunction.NLL: frozenset((Activation.SOFTMAX, Activation.LINEAR)),
}
"""What each loss function should not be given."""
MEAN = 1
"""How torch writes ``reduction="mean"`` in a node."""
CLASSES_DIM = 1
"""The dimension of the classes in the input of `nll_loss`."""
MODULES: Mapping[Activation, tuple[type[Module], ...]] = {
    Activation.SOFTMAX: (nn.Softmax, nn.Softmax2d),
    Activation.SIGMOID: (nn.Sigmoid,),
    Activation.RELU: (nn.ReLU,),
    Activation.TANH: (nn.Tanh,),
}


def loss_input(loss: Tensor, models: Sequence[Module], step: int) -> Finding | None:
    """Whether a loss function in the graph of this loss is given probabilities where it expects something else."""
    for function, _, node in loss_functions(loss):
        activation = ACTIVATIONS.get(node_name(source_of(node)))
        if function is LossFunction.NLL and is_over_batch(node):
            activation = Activation.LOG_SOFTMAX
        elif activation not in UNEXPECTED[function]:
            continue
        facts = LossInputFacts(function, activation, _module_of(activation, models))
        return Finding.at(facts, step, Severity.WARNING, place=facts.module, remedies=remedies_for(facts))
    return None


def is_over_batch(node: Any) -> bool:
    """Whether this node, the input of `nll_loss`, is a log-softmax over the rows."""
    if node_name(node) != "LogSoftmax" or getattr(node, "_saved_dim", CLASSES_DIM) != 0:
        return False
    metadata = getattr(node, "_input_metadata", None)
    return metadata is not None and len(metadata[0].shape) > 1


def loss_functions(loss: Tensor) -> Iterator[tuple[LossFunction, Any, Any]]:
    """Loss functions, each with its node and with the node that its input comes from."""
    waiting, looked_at = [loss.grad_fn], 0
    while waiting and looked_at < MAX_NODES:
        node = waiting.pop(0)
        if node is None:
            continue
        looked_at += 1
        name, inputs = node_name(node), [following for following, _ in node.next_functions]
        if name in LOSSES:
            source = inputs[0] if inputs else None
            if source is not None and node_name(source) == "LogSoftmax" and not is_over_batch(source):
                yield LossFunction.CROSS_ENTROPY, node, source.next_functions[0][0]
            else:
                yield LOSSES[name], node, source
        elif name == "LogSoftmax":  # with probabilities as targets, cross entropy is a sum of products
            yield LossFunction.CROSS_ENTROPY, node, inputs[0]
        elif name in COMBINING:  # not `Addmm`, which is a layer of the model
            waiting += inputs


def mean_squared_error(loss: Tensor) -> Any:
    """The node of this loss, if it is a mean squared error alone."""
    node = loss.grad_fn
    is_mean = node_name(node) == "MseLoss" and getattr(node, "_saved_reduction", None) == MEAN
    return node if is_mean else None


def source_of(node: Any) -> Any:
    """The node that the values come from, however they were arranged since."""
    for _ in range(MAX_RESHAPES):
        if node_name(node) not in ARRANGING:
            break
        node = node.next_functions[0][0]
    return node


def node_name(node: Any) -> str:
    """``Softmax`` of ``SoftmaxBackward0``; empty for none."""
    return "" if node is None else str(node.name()).partition("Backward")[0]


def _module_of(activation: Activation, models: Sequence[Module]) -> str:
    """The module that applies this activation; empty where there is none, or several."""
    kinds = MODULES.get(activation, ())
    named = (pair for model in models for pair in Module.named_modules(model))
    names = [name for name, module in named if isinstance(module, kinds)]
    return plain_name(names[0]) if len(names) == 1 else ""
