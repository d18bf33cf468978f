"""The scale on which entropies of attention heads are shown: from 0 to 1, stretched towards both.

Most heads of a young model are above 0.95, and one that goes blind is below 0.05: what matters happens at the ends. The
scale is the same for all runs, so that two pictures can be compared.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import FuncNorm
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import ArrayLike, NDArray

from mlflow_stability.figures.scale import number_text

_POWER = 3.0
"""How much the ends are stretched; 1: not at all."""
_MANY, _FEW = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0), (0.0, 0.1, 0.5, 0.9, 1.0)

Floats = NDArray[np.float64]


def entropy_height(entropy: ArrayLike) -> Floats:
    """How high an entropy stands, from 0 to 1."""
    from_middle = 2 * np.clip(np.asarray(entropy, np.float64), 0.0, 1.0) - 1
    stretched: Floats = np.sign(from_middle) * (1 - (1 - np.abs(from_middle)) ** (1 / _POWER))
    return (1 + stretched) / 2


def entropy_at(height: ArrayLike) -> Floats:
    """The entropy that stands so high."""
    from_middle = 2 * np.clip(np.asarray(height, np.float64), 0.0, 1.0) - 1
    squeezed: Floats = np.sign(from_middle) * (1 - (1 - np.abs(from_middle)) ** _POWER)
    return (1 + squeezed) / 2


def entropy_norm() -> FuncNorm:
    """The same for colours."""
    return FuncNorm((entropy_height, entropy_at), 0.0, 1.0)


def entropy_ticks(axes: Axes, inches: float) -> None:
    """Numbers beside a vertical axis of entropies, as many as there is room for."""
    axes.yaxis.set_major_locator(FixedLocator(_MANY if inches >= 1.3 else _FEW))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.minorticks_off()
