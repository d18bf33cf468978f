"""Knows a backward pass through a graph that was built before a restore.

In: the moment of a restore, then what is passed to `backward`. Out: whether gradients would come from weights that
are no more: a GAN's generator, say, whose samples were drawn before its discriminator was restored. Guarantees: nothing
is computed; the walk through a graph is paid only for the first few passes after a restore.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from mlflow_stability.probes.hooks import torch_api

LOOKED_AT = 16
"""So many backward passes after a restore are looked at: older graphs are used up by then, or never."""


class StaleGraphs:
    """The graphs of before the last restore."""

    def __init__(self) -> None:
        self._first_new = 0
        self.left = 0
        """So many backward passes are still to be looked at."""

    def restored(self) -> None:
        """Runs right after a restore, in the thread that trains."""
        self._first_new = int(torch_api.get_sequence_nr())
        self.left = LOOKED_AT

    def is_stale(self, losses: Any) -> bool:
        """Whether a part of this graph is older than the restore."""
        if not self.left:
            return False
        self.left -= 1
        roots = [losses] if isinstance(losses, Tensor) else losses
        return any(self._is_old(each) for each in _nodes(roots))

    def _is_old(self, node: Any) -> bool:
        # Leaves, where gradients are accumulated, are numbered beyond all others.
        return int(node._sequence_nr()) < self._first_new


def _nodes(roots: Iterable[Any]) -> Iterable[Any]:
    """The nodes of a graph, each once."""
    waiting = [each.grad_fn for each in roots if isinstance(each, Tensor) and each.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for inner, _ in node.next_functions:
            if inner is not None and inner not in seen:
                seen.add(inner)
                waiting.append(inner)
