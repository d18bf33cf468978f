"""Colours, scale and labels of attention maps.

All heads of a picture share one scale from 0 to a round number; masked and non-finite cells have colours of their own.
"""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from mlflow_stability.figures.scale import number_text
from mlflow_stability.figures.style import BAD, SMALL_SIZE, Picture, add_legend, rgb_bytes
from mlflow_stability.vocabulary.measured import AttentionMap

COLOURS = "viridis"
HIDDEN, HIDDEN_NAME = "#e6e6e6", "hidden by the causal mask"
NOT_FINITE_NAME = "not finite"
_EXPONENT = 0.5
"""Weights are shown by their square root: most of them are small, and their differences matter."""
_TICK_SHARES = (0.0, 0.05, 0.2, 0.5, 1.0)  # ticks of the bar, as shares of the largest
COLLAPSED = 0.05  # a head of lower entropy attends to hardly more than one key

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]


def weight_scale(weights: Floats) -> Normalize:
    """Return a scale from 0 to the round number above the largest weight."""
    highest = min(1.0, float(weights[np.isfinite(weights)].max(initial=0.0)))
    return PowerNorm(_EXPONENT, 0.0, _round_above(highest) if highest > 0 else 1.0, clip=True)


def painted(weights: Floats, scale: Normalize, causal: bool, colours: str = COLOURS) -> tuple[Pixels, set[str]]:
    """Return the colours of the cells, and the names of the special ones among them."""
    finite = np.isfinite(weights)
    values = np.where(finite, weights, 0.0).astype(np.float64)
    cells: Pixels = matplotlib.colormaps[colours](scale(values), bytes=True)[..., :3]
    hidden = np.zeros(weights.shape, bool)
    if causal:  # a model with a memory before these tokens may attend further: only zeros are hidden
        hidden = np.triu(np.ones(weights.shape, bool), 1) & (weights == 0)
    cells[hidden] = rgb_bytes(HIDDEN)
    cells[~finite] = rgb_bytes(BAD)
    return cells, {name for name, where in ((HIDDEN_NAME, hidden), (NOT_FINITE_NAME, ~finite)) if where.any()}


def weight_bar(figure: Picture, place: tuple[float, float, float, float], scale: Normalize) -> Colorbar:
    """Draw the colour bar of weights, with round numbers beside it."""
    axes = figure.add_axes(place)
    bar = Colorbar(axes, ScalarMappable(scale, COLOURS))
    assert scale.vmax is not None
    top = float(scale.vmax)
    bar.ax.yaxis.set_major_locator(FixedLocator([share * top for share in _TICK_SHARES]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.set_title("weight", fontsize=SMALL_SIZE, loc="left", y=1.0, pad=7)
    return bar


def special_legend(axes: Axes, special: set[str], across: float, up: float) -> None:
    """Name the colours outside of the bar, at a place in the axes."""
    colours = {HIDDEN_NAME: HIDDEN, NOT_FINITE_NAME: BAD}
    patches = {name: Patch(facecolor=colour) for name, colour in colours.items() if name in special}
    if patches:
        add_legend(axes, patches, loc="center right", bbox_to_anchor=(across, up), ncols=2)


def _round_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= value * (1 - 1e-6))


def about(attention: AttentionMap) -> list[str]:
    """Return facts about a map, without its layer's name and step."""
    facts = [f"{attention.kind}-attention{', causal' if attention.causal else ''}", _tokens_in_words(attention)]
    if len(attention.heads) < attention.all_heads:
        facts.append(f"{len(attention.heads)} of {attention.all_heads} heads")
    scores = attention.max_logit[np.isfinite(attention.max_logit)]
    return [*facts, f"largest score {number_text(float(scores.max()))}"] if len(scores) else facts


def _tokens_in_words(attention: AttentionMap) -> str:
    """``first 64 of 512 tokens``."""
    shape, whole = attention.shape, attention.tokens
    if attention.kind == "self" and whole[0] == whole[1]:
        return _part(shape[0], whole[0], "token")
    return f"{_part(shape[0], whole[0], 'query', 'queries')}, {_part(shape[1], whole[1], 'key')}"


def _part(shown: int, whole: int, noun: str, plural: str = "") -> str:
    plural = plural or f"{noun}s"
    if shown < whole:
        return f"first {shown:,} of {whole:,} {plural}"
    return f"all {shown:,} {plural}" if shown != 1 else f"1 {noun}"
