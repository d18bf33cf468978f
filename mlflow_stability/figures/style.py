"""Style of all pictures: colour-blind safe colours, fonts, sizes, axes, light background; PNG export.

Figures are not in pyplot; the user's matplotlib settings neither affect them nor are changed.
Colours: Okabe and Ito, https://jfly.uni-koeln.de/color/
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.text.phrases import visible

DPI = 150
_PAGE_DPI = 90
WIDTH = 10.0  # inches; 1500 pixels
INK, FAINT, GRID, GROUND = "#222222", "#5f5f5f", "#e3e3e3", "#ffffff"
LINES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#222222")  # colours of the curves of a panel
BAD = "#d55e00"  # for non-finite values and critical findings
SEVERITY = {Severity.CRITICAL: BAD, Severity.WARNING: "#e69f00", Severity.INFO: "#56b4e9"}
TURNED_BACK = "#8a5a9e"  # for rollbacks
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 13.0, 10.0, 9.0
_SUBTITLE, _MIN_NAME = 120, 8  # characters of the line beneath a title, and the least for a name in it
_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": "#9a9a9a",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL_SIZE,
    "ytick.labelsize": SMALL_SIZE,
    "figure.facecolor": GROUND,
    "axes.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "hatch.linewidth": 0.8,
    "path.simplify": True,
    "agg.path.chunksize": 20_000,
}


class Picture(Figure):
    """A figure outside of pyplot that notebooks show."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture, and half its size in pixels, so that it is sharp on high-resolution screens."""
        width, height = self.get_size_inches()
        return png(self), {"width": round(width * _PAGE_DPI), "height": round(height * _PAGE_DPI)}


@contextmanager
def our_style() -> Iterator[None]:
    """Draw with our settings alone; the user's are restored afterwards."""
    defaults: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of settings that are only reset to their default
        matplotlib.rcParams.update({**defaults, **_STYLE})
        yield


def new_figure(height: float, width: float = WIDTH) -> Picture:
    figure = Picture(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure, dpi: int = DPI, compress_level: int = 4) -> bytes:
    """Return the picture as a PNG file; a higher compression level takes longer."""
    file = BytesIO()
    with our_style():
        figure.savefig(file, dpi=dpi, format="png", pil_kwargs={"compress_level": compress_level})
    return file.getvalue()


def saved(picture: Picture, path: str | os.PathLike[str] | None) -> Picture:
    if path is not None:
        picture.savefig(path, dpi=150)
    return picture


def sharp_png(figure: Picture) -> bytes:
    """Return the picture as a PNG file of 300 dots per inch, for printing many small cells."""
    return png(figure, 300, 3)


def entitle(figure: Figure, title: str, facts: str, name: str = "") -> None:
    """Write a title in the upper left corner and fainter lines beneath: the facts, then a name in the room left."""
    height = float(figure.get_size_inches()[1])
    room = _SUBTITLE - len(facts) - (3 if facts else 0)
    subtitle = " · ".join(filter(None, [shown(facts), shown(name, room) if room >= _MIN_NAME else ""]))
    figure.text(0.012, 1 - 0.12 / height, shown(title, 80), ha="left", va="top", fontsize=TITLE_SIZE, fontweight="bold")
    first, *rest = wrap(subtitle, _SUBTITLE, break_on_hyphens=False) or [""]
    lines = "\n".join([first, shown(" ".join(rest), _SUBTITLE)]).rstrip()
    figure.text(0.012, 1 - 0.38 / height, lines, ha="left", va="top", fontsize=TEXT_SIZE, color=FAINT)


def say_instead(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=TEXT_SIZE)


def shown(text: str, longest: int | None = None) -> str:
    """Return text with boxes for characters that our font does not have; too long text loses its middle."""
    text = "".join(letter if ord(letter) in _letters() else "□" for letter in visible(text))
    if longest is None or len(text) <= longest:
        return text
    head = (longest - 1) // 3
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


def add_legend(parent: Axes | Figure, marks: Mapping[str, Artist], **place: Any) -> None:
    """Add a small legend without a frame: marks by their names."""
    style: dict[str, Any] = {"fontsize": SMALL_SIZE, "frameon": False, "labelcolor": FAINT, "borderaxespad": 0.0}
    parent.legend(list(marks.values()), list(marks), **style | place)


def rgb_bytes(colour: str) -> tuple[int, int, int]:
    red, green, blue = to_rgb(colour)
    return round(red * 255), round(green * 255), round(blue * 255)


Floats = NDArray[np.float64]

_HEADROOM = 0.08
_MAX_REACH = 2.0  # a linear scale reaches at most this far, in ranges of the middle 98 % of values, beyond these
_SMALLEST, _LARGEST = 1e-250, 1e250  # beyond these the arithmetic of an axis overflows


@dataclass(frozen=True, slots=True)
class Scale:
    logarithmic: bool
    bottom: float
    top: float
    cut: float | None = None  # the largest value beyond `top`, or None


def scale_of(values: Floats, *, never_negative: bool = False) -> Scale | None:
    """Return the scale for these values, or None where none is finite.

    Positive values get a logarithmic scale; in a linear one, a few extremes do not press the others into a line.
    With `never_negative`, zeros are at the lower edge of a logarithmic scale.
    """
    values = np.clip(values[np.isfinite(values)], -_LARGEST, _LARGEST)
    if not len(values):
        return None
    if never_negative and (values > 0).any():
        values = values[values > 0]
    low, high = float(values.min()), float(values.max())
    if low > 0:
        low, high = max(low, _SMALLEST), max(high, _SMALLEST)
        room = max((math.log(high) - math.log(low)) * _HEADROOM, 0.05)
        return Scale(True, low * math.exp(-room), high * math.exp(room))
    inner_low, inner_high = np.percentile(values, [1, 99]).tolist()
    reach = _MAX_REACH * (inner_high - inner_low)
    cut = None
    if reach > 0:
        low = max(low, inner_low - reach)
        if high > inner_high + reach:
            cut, high = high, inner_high + reach
    room = (high - low) * _HEADROOM or max(abs(high) * 0.1, 1e-9)
    return Scale(False, low - room, high + room, cut)


def apply(axes: Axes, scale: Scale) -> None:
    if scale.logarithmic:
        axes.set_yscale("log")
        decades = math.log10(scale.top) - math.log10(scale.bottom)
        if decades < 1.2:
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        elif decades < 2.5:
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
        else:
            axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.set_ylim(scale.bottom, scale.top)


def number_text(value: float) -> str:
    """Return a short number, as people type it: ``1e-5``."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def step_axis(axes: Axes, first: int, last: int, *, labels: bool) -> None:
    room = (last - first) * 0.012 or 0.5
    axes.set_xlim(first - room, last + room)
    if last - first < 5:
        axes.xaxis.set_major_locator(FixedLocator(range(first, last + 1)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelbottom=labels, length=3 if labels else 0)
    if labels:
        axes.set_xlabel("step")
