"""What is mixed up in the graph of a loss: attention over queries, a view for a transpose, pairs, layers made again.

Guarantees: shapes alone are read, of the whole graph in the first steps; nothing of the training is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mlflow_stability.kinds.first_look.dimensions import (
    AttentionDim,
    AttentionDimFacts,
    MixedDimensions,
    MixedDimensionsFacts,
)
from mlflow_stability.kinds.first_look.loss_function import LossBroadcast, LossBroadcastFacts
from mlflow_stability.kinds.first_look.not_trained import MADE_AGAIN, Holder, UnregisteredFacts
from mlflow_stability.probes.first_look.loss_graph import (
    COMBINING,
    OF_A_DIFFERENCE,
    dim_of,
    node_name,
    nodes_behind,
    nodes_of,
    saved,
    shape_of,
)
from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.model_discovery import Kind, remembered
from mlflow_stability.vocabulary.result import Finding, Severity

STEPS = AttentionDim().steps
VIEWS = frozenset(("View", "UnsafeView", "ReshapeAlias"))
# Nodes between a softmax and the product with the values that keep both dimensions of the scores.
KEEPING = VIEWS | {"Expand", "Clone", "ToCopy", "NativeDropout", "Mul"}
# Nodes that may be between a view and the transpose that belongs to it.
PASSING = VIEWS | {"Expand", "Clone", "ToCopy", "Unsqueeze", "Squeeze", "Select", "Slice", "Split", "Unbind"}
TRANSPOSING = frozenset(("Transpose", "Permute"))
# Behind these, an exchange of two dimensions shifts rows on purpose, as in relative attention.
PADDING = frozenset(("ConstantPadNd", "Cat", "CopySlices"))
MAX_PASSED = 16  # nodes around a view
MIN_MADE = 2  # parameters of a layer that is made again: weight and bias


class GraphShapes:
    """Looks at the first loss of each of the first steps; what is mixed up in all of them is found."""

    def __init__(self) -> None:
        self._looks = 0
        self._step = 0
        self._are_over_queries = self._are_mixed = self._are_made_again = True
        self._leaves: list[weakref.ref[Tensor]] | None = None  # parameters in the last graph

    def note(self, loss: Tensor, step: int) -> Iterator[Finding]:
        if self._looks >= STEPS or step == self._step:
            return
        self._step, self._looks = step, self._looks + 1
        nodes = list(nodes_behind(loss.grad_fn))
        users: dict[Any, list[Any]] = {}
        for node in nodes:
            for source, _ in node.next_functions:
                users.setdefault(source, []).append(node)
        size = next(filter(None, map(_positions_not_over_keys, nodes)), 0)
        shapes = _mixing_view(nodes, users)
        made = self._made_since(nodes, users)
        self._are_over_queries &= size > 0
        self._are_mixed &= shapes is not None
        self._are_made_again &= len(made) >= MIN_MADE or self._looks == 1
        if self._looks < STEPS:
            return
        if self._are_over_queries:
            yield Finding.at(AttentionDimFacts(size), step, Severity.WARNING, remedies=AttentionDim.remedies)
        if self._are_mixed and shapes is not None:
            facts = MixedDimensionsFacts(*shapes)
            yield Finding.at(facts, step, Severity.WARNING, remedies=MixedDimensions.remedies)
        if self._are_made_again:
            held = {id(tensor) for optimizer in remembered(Kind.OPTIMIZER)[0] for tensor in parameters_of(optimizer)}
            if not any(id(tensor) in held for tensor in made):
                values = sum(tensor.numel() for tensor in made)
                unregistered = UnregisteredFacts(Holder.FORWARD, "", "", "", len(made), values)
                yield Finding.at(unregistered, step, Severity.WARNING, remedies=MADE_AGAIN)

    def _made_since(self, nodes: Sequence[Any], users: Mapping[Any, Sequence[Any]]) -> list[Tensor]:
        """Return the parameters that are in place of as many others of the last graph, beside some that stayed."""
        leaves = {node: leaf for node in nodes if isinstance(leaf := getattr(node, "variable", None), nn.Parameter)}
        now = set(map(id, leaves.values()))
        last, self._leaves = self._leaves, [weakref.ref(leaf) for leaf in leaves.values()]
        stayed = {id(leaf) for reference in last or () if (leaf := reference()) is not None} & now
        made = [node for node, leaf in leaves.items() if id(leaf) not in stayed]
        # Of data, random layers may be meant, as an augmentation.
        if len(leaves) != len(last or ()) or not stayed or not any(_is_beside_gradient(node, users) for node in made):
            return []
        return [leaves[node] for node in made]


def _is_beside_gradient(node: Any, users: Mapping[Any, Sequence[Any]]) -> bool:
    """Whether the parameter of a node is used together with what has a gradient itself and is no parameter."""
    following = users.get(node, ())
    if len(following) == 1 and node_name(following[0]) in ("T", *TRANSPOSING):
        following = users.get(following[0], ())
    inputs = (source for user in following for source, _ in user.next_functions if source is not None)
    return any(getattr(source, "variable", None) is None and node_name(source) != "T" for source in inputs)


def _positions_not_over_keys(node: Any) -> int:
    """Return the number of positions, if a product has a softmax over others than the keys on its left; else 0."""
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
    return size[0] if is_square and dim_of(node, -1) != len(shape) - 1 else 0


def _mixing_view(
    nodes: Sequence[Any], users: Mapping[Any, Sequence[Any]]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shapes before and after the first view that moves a dimension, with no transpose beside it."""
    for node in nodes:
        before = getattr(node, "_saved_self_sym_sizes", None) if node_name(node) in VIEWS else None
        if before is None or not moves_dimension(before, shape_of(node)):
            continue
        around = [*_around(node, users), *_around(node, None)]
        if not (TRANSPOSING | (PADDING if len(before) == len(shape_of(node)) else set())) & set(around):
            return tuple(map(int, before)), shape_of(node)
    return None


def _around(node: Any, users: Mapping[Any, Sequence[Any]] | None) -> list[str]:
    """Return names of nodes around a view: those that use it, else those that it comes from."""
    waiting: list[Any] = [node]
    names: list[str] = []
    while waiting and len(names) < MAX_PASSED:
        last = waiting.pop(0)
        following = [source for source, _ in last.next_functions] if users is None else users.get(last, ())
        names += map(node_name, following)
        waiting += [further for further in following if node_name(further) in PASSING]
    return names


def moves_dimension(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a view gives a dimension another place: as a transpose would, but with the values where they were.

    Not where a split and a merge of neighbours that happen to have these sizes give the same shapes.
    """
    old, new = ([int(size) for size in shape if size != 1] for shape in (before, after))
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    if len(old) > 1 and sorted(old) == sorted(new):
        return True
    if len(old) == 3 and len(new) == 2 and old[0] % new[0]:  # else channels in as many groups as they have rows
        return new[0] == old[1] or (new[0] == old[2] and new[0] % (old[0] * old[1]) > 0)
    if len(old) == 2 and len(new) == 3 and new[0] % old[0]:  # of attention, heads are split off before the positions
        return new[1] == old[0]
    if len(old) == len(new) == 3 and old[1] == new[1]:  # the same, merged with the batch
        high, low = max(old[0], new[0]), min(old[0], new[0])
        return high % low == 0 and high // low != old[1]
    return False


# Nodes of a difference between prediction and target.
DIFFERENCES = frozenset(("MseLoss", "SmoothL1Loss", "HuberLoss", "Sub"))
EXTREMA = frozenset(("Minimum", "Maximum"))  # of clipped losses, as in PPO
# Nodes by which a script makes pairs on purpose.
ON_PURPOSE = frozenset(("Unsqueeze", "View", "UnsafeView", "ReshapeAlias", "Slice", "Index", "Expand", "Repeat"))


def loss_over_pairs(loss: Tensor, step: int) -> Finding | None:
    """Return a finding if a difference or product in the graph of this loss has a value for each pair of rows."""
    for node, name, inputs in nodes_of(loss.grad_fn, COMBINING | OF_A_DIFFERENCE | EXTREMA):
        facts = _pairs(node, name, inputs) if name in DIFFERENCES or name == "Mul" else None
        if facts is not None:
            return Finding.at(facts, step, Severity.WARNING, remedies=LossBroadcast.remedies)
    return None


def _pairs(node: Any, name: str, inputs: list[Any]) -> LossBroadcastFacts | None:
    if len([following for following in inputs if following is not None]) != 1:
        return None  # the target has a graph of its own
    source = next(following for following in inputs if following is not None)
    is_written = name in ("Sub", "Mul")
    whole = shape_of(node) if is_written else shape_of(source)
    if not is_written:  # the loss function has broadcast both before
        if node_name(source) != "Expand":
            return None
        source = source.next_functions[0][0]
    shape = shape_of(source)
    rows = whole[0] if len(whole) == 2 and whole[0] == whole[1] > 1 else 0
    if not rows or shape not in ((rows, 1), (rows,)) or node_name(source) in ON_PURPOSE:
        return None
    if name == "Mul":  # by a whole table, it may be meant
        constants = [held.shape for factor in ("self", "other") if (held := saved(node, factor)) is not None]
        if constants != [(rows,) if len(shape) == 2 else (rows, 1)]:
            return None
    return LossBroadcastFacts(rows, is_column=len(shape) == 2, is_product=name == "Mul")
