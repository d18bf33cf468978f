"""Learning-rate schedules as people use them."""

from __future__ import annotations

import math
from collections.abc import Callable


def cosine(steps: int, warm_up: int = 20, floor: float = 0.05) -> Callable[[int], float]:
    """A linear warm-up, then half a cosine down to a small rest."""

    def share(step: int) -> float:
        if step <= warm_up:
            return step / warm_up
        way = min(1.0, (step - warm_up) / (steps - warm_up))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * way))

    return share
