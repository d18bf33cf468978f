"""Sets the first moments of an optimizer to zero: after going back, nothing pulls on in the old direction.

In: an optimizer between two steps. Out: the same one, its momentum at rest. Promised: tensors stay at their addresses,
their autograd versions are not counted up, and second moments and counters are left alone.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
"""How the optimizers of torch, and most others, call theirs."""


def reset_momentum(optimizer: Optimizer) -> int:
    """Set its first moments to zero; gives how many tensors that were."""
    count = 0
    for state in optimizer.state.values():
        for name in FIRST_MOMENTS:
            moment = state.get(name)
            if isinstance(moment, Tensor):
                moment.data.zero_()
                count += 1
    return count
