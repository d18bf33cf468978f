"""Colours, scale and labels of attention maps.

In: weights by query and key. Out: pixels, the scale, and the text beside a map. Guarantees: all heads of a picture
share one scale from 0 to a round number; masked and non-finite cells have colours of their own.
"""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, PowerNorm, to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from mlflow_stability.figures.scale import number_text
from mlflow_stability.figures.style import BAD, FAINT, SMALL_SIZE, Picture
from mlflow_stability.vocabulary.measured import AttentionMap

COLOURS = "viridis"
HIDDEN, HIDDEN_NAME = "#e6e6e6", "hidden by the causal mask"
NOT_FINITE_NAME = "not finite"
_ROOT = 0.5
"""Weights are shown by their square root: most of them are small, and their differences matter."""
_SHARES = (0.0, 0.05, 0.2, 0.5, 1.0)
"""Where the numbers beside the bar stand, as shares of the largest."""

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]


def weight_scale(weights: Floats) -> Normalize:
    """From 0 to the round number above the largest weight."""
    there = weights[np.isfinite(weights)]
    highest = min(1.0, float(there.max(initial=0.0)))
    return PowerNorm(_ROOT, 0.0, _round_above(highest) if highest > 0 else 1.0, clip=True)


def painted(weights: Floats, scale: Normalize, causal: bool, colours: str = COLOURS) -> tuple[Pixels, set[str]]:
    """The colours of the cells, and which special ones are among them."""
    finite = np.isfinite(weights)
    values = np.where(finite, weights, 0.0).astype(np.float64)
    cells: Pixels = matplotlib.colormaps[colours](scale(values), bytes=True)[..., :3]
    hidden = np.zeros(weights.shape, bool)
    if causal:  # a model with a memory before these tokens may look further: only what is zero was hidden
        hidden = np.triu(np.ones(weights.shape, bool), 1) & (weights == 0)
    cells[hidden] = _bytes(HIDDEN)
    cells[~finite] = _bytes(BAD)
    return cells, {name for name, where in ((HIDDEN_NAME, hidden), (NOT_FINITE_NAME, ~finite)) if where.any()}


def weight_bar(figure: Picture, place: tuple[float, float, float, float], scale: Normalize) -> Colorbar:
    """The colour bar of weights, with round numbers beside it."""
    axes = figure.add_axes(place)
    bar = Colorbar(axes, ScalarMappable(scale, COLOURS))
    assert scale.vmax is not None
    top = float(scale.vmax)
    bar.ax.yaxis.set_major_locator(FixedLocator([share * top for share in _SHARES]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.set_title("weight", fontsize=SMALL_SIZE, loc="left", y=1.0, pad=7)
    return bar


def special_legend(axes: Axes, seen: set[str], across: float, up: float) -> None:
    """What the colours outside of the bar say; the place is of the axes."""
    patches = {HIDDEN_NAME: HIDDEN, NOT_FINITE_NAME: BAD}
    found = {name: Patch(facecolor=colour) for name, colour in patches.items() if name in seen}
    if found:
        axes.legend(
            list(found.values()),
            list(found),
            loc="center right",
            bbox_to_anchor=(across, up),
            ncols=2,
            fontsize=SMALL_SIZE,
            frameon=False,
            labelcolor=FAINT,
            borderaxespad=0.0,
        )


def _round_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * each for each in (1.0, 2.0, 5.0, 10.0) if power * each >= value * (1 - 1e-6))


def _bytes(colour: str) -> tuple[int, int, int]:
    red, green, blue = to_rgb(colour)
    return round(red * 255), round(green * 255), round(blue * 255)


COLLAPSED = 0.05
"""A head whose entropy is below this looks at hardly more than one key."""


def about(attention: AttentionMap) -> list[str]:
    """What there is to say of a map, without its layer's name and step."""
    said = [f"{attention.kind}-attention{', causal' if attention.causal else ''}", tokens_in_words(attention)]
    if len(attention.heads) < attention.all_heads:
        said.append(f"{len(attention.heads)} of {attention.all_heads} heads")
    scores = attention.max_logit[np.isfinite(attention.max_logit)]
    return [*said, f"largest score {number_text(float(scores.max()))}"] if len(scores) else said


def tokens_in_words(attention: AttentionMap) -> str:
    """Which tokens are shown: "first 64 of 512 tokens"."""
    shape, whole = attention.shape, attention.tokens
    if attention.kind == "self" and whole[0] == whole[1]:
        return _part(shape[0], whole[0], "token")
    return f"{_part(shape[0], whole[0], 'query', 'queries')}, {_part(shape[1], whole[1], 'key')}"


def entropy_in_words(entropy: float) -> str:
    """The entropy of a head as it stands above its panel."""
    return f"{entropy:.2f}" if np.isfinite(entropy) else "not finite"


def _part(shown: int, whole: int, one: str, many: str = "") -> str:
    many = many or f"{one}s"
    if shown < whole:
        return f"first {shown:,} of {whole:,} {many}"
    return f"all {shown:,} {many}" if shown != 1 else f"1 {one}"
