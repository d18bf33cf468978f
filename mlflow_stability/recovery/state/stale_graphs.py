"""Knows a backward pass through a graph that was built before a restore.

In: the moment of a restore, then what is passed to `backward`. Out: whether gradients would come from weights that
are no more: a GAN's generator, say, whose samples were drawn before its discriminator was restored. Guarantees: nothing
is computed; the walk through a graph is paid only for the first few passes after a restore.

Autograd counts the nodes of each thread by itself, and no node tells its thread. Forward passes in threads of their own
have numbers from near zero, so only those of the last steps before the restore are taken for old.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from threading import get_ident
from typing import Any

from torch import Tensor

from mlflow_stability.probes.hooks import torch_api

LOOKED_AT = 16
"""So many backward passes after a restore are looked at, and so many steps before it may graphs be from: older graphs
are used up by then, or never."""


class StaleGraphs:
    """The graphs of before the last restore."""

    def __init__(self) -> None:
        self._began = get_ident(), int(torch_api.get_sequence_nr())
        self._oldest = self._first_new = 0
        self.first_step = 0
        """The last step before the training began."""
        self.left = 0
        """So many backward passes are still to be looked at."""

    def restored(self, step: int | None = None) -> None:
        """Runs right after a restore, in the thread that trains; `step`: the last one, None where it is not known."""
        self._first_new = now = int(torch_api.get_sequence_nr())
        self.left, self._oldest = LOOKED_AT, 0
        thread, began = self._began
        steps = 0 if step is None else step - self.first_step
        if steps > 0 and thread == get_ident():
            self._oldest = now - math.ceil((now - began) / steps) * LOOKED_AT

    def is_stale(self, losses: Any) -> bool:
        """Whether a part of this graph is older than the restore."""
        if not self.left:
            return False
        self.left -= 1
        roots = [losses] if isinstance(losses, Tensor) else losses
        return any(self._is_old(each) for each in _nodes(roots))

    def _is_old(self, node: Any) -> bool:
        # Leaves, where gradients are accumulated, are numbered beyond all others.
        return self._oldest <= int(node._sequence_nr()) < self._first_new


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
