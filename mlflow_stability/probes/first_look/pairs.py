"""Reads from the graph of a loss whether it compares every prediction with every target; no value is read."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mlflow_stability.kinds.first_look.loss_broadcast import LossBroadcast, LossBroadcastFacts
from mlflow_stability.probes.first_look.loss_graph import COMBINING, MAX_NODES, node_name
from mlflow_stability.vocabulary.result import Finding, Severity

DIFFERENCES = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss", "Sub"))
"""Nodes of a difference between prediction and target."""
OF_A_DIFFERENCE = frozenset(("Pow", "Abs", "Sqrt"))
ON_PURPOSE = frozenset(("Unsqueeze", "View", "UnsafeView", "ReshapeAlias", "Slice", "Index", "Expand", "Repeat"))
"""Nodes by which a script makes pairs."""


def loss_over_pairs(loss: Tensor, step: int) -> Finding | None:
    """Whether a difference in the graph of this loss has a value for each pair of rows."""
    waiting, looked_at = [loss.grad_fn], 0
    while waiting and looked_at < MAX_NODES:
        node = waiting.pop(0)
        if node is None:
            continue
        looked_at += 1
        name, inputs = node_name(node), [following for following, _ in node.next_functions]
        if name in DIFFERENCES:
            facts = _pairs(node, name, inputs)
            if facts is not None:
                return Finding.at(facts, step, Severity.WARNING, remedies=LossBroadcast.remedies)
        if name in COMBINING or name in OF_A_DIFFERENCE:
            waiting += inputs
    return None


def _pairs(node: Any, name: str, inputs: list[Any]) -> LossBroadcastFacts | None:
    if len([following for following in inputs if following is not None]) != 1:
        return None  # the target has a graph of its own
    source = next(following for following in inputs if following is not None)
    whole = _shape(node) if name == "Sub" else _shape(source)
    if name != "Sub":  # the loss function has made both of one shape before
        if node_name(source) != "Expand":
            return None
        source = source.next_functions[0][0]
    shape = _shape(source)
    rows = whole[0] if len(whole) == 2 and whole[0] == whole[1] > 1 else 0
    if not rows or shape not in ((rows, 1), (rows,)) or node_name(source) in ON_PURPOSE:
        return None
    return LossBroadcastFacts(rows, is_column=len(shape) == 2)


def _shape(node: Any) -> tuple[int, ...]:
    """The shape of what a node made; empty where torch does not say."""
    metadata = getattr(node, "_input_metadata", None) if node is not None else None
    return tuple(metadata[0].shape) if metadata else ()
