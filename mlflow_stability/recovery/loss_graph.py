"""Names the operations between a model's output and the loss: what the script's own loss function does.

In: the loss, and where the model's outputs stand in the graph of gradients. Out: names of operations, from the model on
to the loss. Promised: the graph is only read, and what it kept of the forward pass may be gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from mlflow_stability.recovery.nan_trace import word_of

MOST_NODES = 4096
BREAKING = frozenset(
    {
        "acos", "acosh", "asin", "atanh", "binary_cross_entropy", "div", "exp", "expm1", "lgamma", "linalg_vector_norm",
        "log", "log10", "log1p", "log2", "logit", "nll_loss", "nll_loss2d", "norm", "pow", "prod", "reciprocal",
        "rsqrt", "sqrt", "std", "tan", "var", "xlogy",
    }
)  # fmt: skip
"""Operations that turn finite numbers into others without being anywhere near the end of what a type can hold. The
last step of a cross-entropy is among them: its mean over no targets at all is 0/0."""


def loss_operations(loss: Any, outputs: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """What was done to the outputs, from the node of the loss; empty where the graph does not lead to them."""
    ends = set(outputs)
    found: list[str] = []
    seen = {loss}
    waiting = deque([loss])
    arrived = False
    while waiting and len(seen) < MOST_NODES:
        node = waiting.popleft()
        if node is None:
            continue
        if (node.name(), node._sequence_nr()) in ends:
            arrived = True
            continue
        found.append(word_of(node.name()))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return tuple(dict.fromkeys(reversed(found))) if arrived else ()


def suspects(operations: Sequence[str]) -> tuple[str, ...]:
    """Those of them that can turn finite numbers into others."""
    return tuple(each for each in operations if each in BREAKING)
