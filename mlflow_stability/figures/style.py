"""Style of all pictures: colour-blind safe colours, fonts, sizes, light background; PNG export.

Guarantees: figures are not in pyplot; the user's matplotlib settings neither affect them nor are changed; pictures of
many small cells are sharp enough to print. Colours: Okabe and Ito, https://jfly.uni-koeln.de/color/
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from textwrap import wrap
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.text import visible

DPI = 150
_PAGE_DPI = 90
WIDTH = 10.0
"""Inches; 1500 pixels."""
INK, FAINT, GRID, GROUND = "#222222", "#5f5f5f", "#e3e3e3", "#ffffff"
LINES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#222222")
"""One for each curve of a panel."""
BAD = "#d55e00"
"""What is not finite, and what is critical."""
SEVERITY = {Severity.CRITICAL: BAD, Severity.WARNING: "#e69f00", Severity.INFO: "#56b4e9"}
TURNED_BACK = "#8a5a9e"
"""Where the training was rolled back."""
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 13.0, 10.0, 9.0
_SUBTITLE, _LEAST_NAME = 120, 8
"""Letters of the line beneath a title, and of a name in it."""
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
    """A figure that notebooks show, though no pyplot knows of it."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, and its size on a page: sharp on screens with two pixels for one."""
        width, height = self.get_size_inches()
        return png(self), {"width": round(width * _PAGE_DPI), "height": round(height * _PAGE_DPI)}


@contextmanager
def our_style() -> Iterator[None]:
    """Draw in here: with our settings alone, and afterwards with those from before."""
    ours: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of settings that we only put back to their default
        matplotlib.rcParams.update({**ours, **_STYLE})
        yield


def new_figure(height: float, width: float = WIDTH) -> Picture:
    """An empty picture that no pyplot knows of."""
    figure = Picture(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """The picture as a PNG file; made quickly, for somebody waits for it."""
    file = BytesIO()
    with our_style():
        figure.savefig(file, dpi=DPI, format="png", pil_kwargs={"compress_level": 4})
    return file.getvalue()


def entitle(figure: Figure, title: str, facts: str, name: str = "", left: float = 0.012) -> None:
    """A title in the upper left corner and fainter lines beneath: the facts, then a name in the room they leave."""
    height = float(figure.get_size_inches()[1])
    room = _SUBTITLE - len(facts) - (3 if facts else 0)
    subtitle = " · ".join(filter(None, [shown(facts), shown(name, room) if room >= _LEAST_NAME else ""]))
    figure.text(left, 1 - 0.12 / height, shown(title, 80), ha="left", va="top", fontsize=TITLE_SIZE, fontweight="bold")
    first, *rest = wrap(subtitle, _SUBTITLE, break_on_hyphens=False) or [""]
    lines = "\n".join([first, shown(" ".join(rest), _SUBTITLE)]).rstrip()
    figure.text(left, 1 - 0.38 / height, lines, ha="left", va="top", fontsize=TEXT_SIZE, color=FAINT)


def say_instead(axes: Axes, text: str) -> None:
    """Words where nothing can be drawn."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=TEXT_SIZE)


def shown(text: str, longest: int | None = None) -> str:
    """Text as our letters can show it, for other people's names may hold anything; too long, it loses its middle."""
    text = "".join(each if ord(each) in _letters() else "□" for each in visible(text))
    if longest is None or len(text) <= longest:
        return text
    head = (longest - 1) // 3
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())


SHARP = 300
"""Dots per inch."""


def sharp_png(figure: Picture) -> bytes:
    """The picture as a PNG file of 300 dots per inch."""
    file = BytesIO()
    with our_style():
        figure.savefig(file, dpi=SHARP, format="png", pil_kwargs={"compress_level": 3})
    return file.getvalue()
