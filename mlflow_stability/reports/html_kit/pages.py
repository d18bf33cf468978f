"""Write reports as one page: for a browser, a printer, and the artifact viewer of MLflow.

A page has its style and its drawings inside and needs no network and no script, so that it works in a sandboxed frame.
`policy.html` forbids both to it.
Every name is escaped; the same input gives the same page.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from mlflow_stability.reports import comparison_phrases, run_phrases
from mlflow_stability.reports.comparison_sections import comparison_sections, lead, with_distinct_names
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.html_kit.axis import HEIGHT, WIDTH, Tick, decades, round_numbers
from mlflow_stability.reports.html_kit.comparison_pictures import dots_of, overlay_of, strips_of, survival_picture_of
from mlflow_stability.reports.report import Report
from mlflow_stability.reports.run_sections import DrawnCurve, drawn_curves, marked_at, overview, run_sections
from mlflow_stability.reports.sections import failures
from mlflow_stability.vocabulary.result import Comparison, Diagnosis, Finding
from mlflow_stability.vocabulary.text.phrases import number_text

MAX_CHARTS = 6  # curves drawn for one run; the table lists them all
MAX_STABLEST, MAX_UNSTABLE = 50, 50


def run_page(report: Report) -> str:
    return _page(
        "run_page.html",
        wording=run_phrases,
        report=report,
        overview=overview(report),
        runs=[run_sections(diagnosis) for diagnosis in report.diagnoses],
        charts=[_charts(diagnosis) for diagnosis in report.diagnoses],
        unread=failures((failure.source, failure.message) for failure in report.failures),
    )


def comparison_page(comparison: Comparison) -> str:
    """Return what `compare` found; of very many runs the most and the least stable are listed."""
    comparison = with_distinct_names(comparison)
    cohort = comparison.cohort
    first, last, between = comparison_phrases.chosen(comparison.runs, MAX_STABLEST, MAX_UNSTABLE)
    return _page(
        "comparison_page.html",
        wording=comparison_phrases,
        comparison=comparison,
        lead=lead(comparison),
        first=first,
        last=last,
        between=between,
        verdicts={verdict.source: verdict for verdict in comparison.gate.verdicts} if comparison.gate else {},
        columns=comparison_phrases.number_columns([run.card for run in (*first, *last)]),
        sections=comparison_sections(comparison),
        overlay=overlay_of(comparison.cards),
        layers=_layer_pictures(comparison),
        strips=strips_of(comparison.cards),
        survival=survival_picture_of(cohort.survival) if cohort else None,
        dots=[dots_of(plot) for plot in cohort.plots] if cohort else [],
    )


def _layer_pictures(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return title, description and address of the picture of each quantity by layer that two runs have."""
    if not comparison.layers:
        return []
    from mlflow_stability.figures.layer_heatmap import layers_beside  # matplotlib takes half a second to import
    from mlflow_stability.figures.style import png

    names = comparison_phrases.two_names(comparison)
    return [
        (
            beside.title,
            comparison_phrases.layer_difference(beside, names),
            f"data:image/png;base64,{b64encode(png(layers_beside(beside, names))).decode('ascii')}",
        )
        for beside in comparison.layers
    ]


def _charts(diagnosis: Diagnosis) -> list[Chart]:
    numbered = list(enumerate(diagnosis.findings, start=1))
    curves = drawn_curves(diagnosis)[:MAX_CHARTS]
    return [chart_of(curve, marked_at(curve, curves, numbered)) for curve in curves]


def _page(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values) + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mlflow_stability.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escaped,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(number_text=number_text, width=WIDTH, height=HEIGHT)
    return environment


def _escaped(value: object) -> object:
    """Names and messages without control characters; output of the template's own macros unchanged."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


MARGIN_SHARE = 0.04  # share of the height that stays free above and below the curve
MIN_BAND_PERCENT = 0.4  # minimum width of a band, in percent, so that a finding of one step is visible
NUMBER_PERCENT = 6.0  # percent of the width that the number of a finding takes on the narrowest of screens
MAX_NUMBER_ROWS = 4  # rows of numbers above the curve; a finding without room there has no number


@dataclass(frozen=True, slots=True)
class Band:
    number: int
    episode: Finding
    left: float
    width: float
    row: int | None  # the row of its number, from 0, so that neighbours do not cover each other; None: no number


@dataclass(frozen=True, slots=True)
class Chart:
    """A loss curve as paths, ticks and bands, in percent of width and height, as the drawing stretches."""

    curve: DrawnCurve
    line: str  # SVG path through the middle of every stretch
    envelope: str  # SVG path around lowest and highest values
    values: tuple[Tick, ...]
    steps: tuple[Tick, ...]
    bands: tuple[Band, ...]

    @property
    def rows(self) -> int:
        """Number of rows that the numbers of the findings take."""
        return max((band.row + 1 for band in self.bands if band.row is not None), default=0)


def chart_of(curve: DrawnCurve, numbered: Sequence[tuple[int, Finding]]) -> Chart:
    steps = _steps(curve)
    bands: list[Band] = []
    free_from = [0.0] * MAX_NUMBER_ROWS  # where the last number of each row ends
    for number, finding in sorted(numbered, key=lambda item: item[1].start):
        left, right = _across(curve, np.array([finding.start, max(finding.start, finding.end)], np.float64)).tolist()
        width = max(MIN_BAND_PERCENT, right - left)
        left = min(left, 100 - width)
        row = next((row for row, free in enumerate(free_from) if left >= free), None)
        if row is not None:
            free_from[row] = left + NUMBER_PERCENT
        bands.append(Band(number, finding, left, width, row))
    if not curve.finite.any():
        return Chart(curve, "", "", (), steps, tuple(bands))
    low, high = _heights(curve, curve.low), _heights(curve, curve.high)
    across = _across(curve, curve.steps.astype(np.float64)) * WIDTH / 100
    line, envelope = "", ""
    for part in _parts(curve):
        line += _path(across[part], (low[part] + high[part]) / 2)
        there_and_back = np.append(across[part], across[part][::-1])
        envelope += _path(there_and_back, np.append(high[part], low[part][::-1])) + "Z"
    return Chart(curve, line, envelope, _values(curve), steps, tuple(bands))


def _parts(curve: DrawnCurve) -> list[slice]:
    """The parts that can be drawn as one line: finite, and never back in time."""
    breaks = np.flatnonzero(~curve.finite[1:] | ~curve.finite[:-1] | (np.diff(curve.steps) < 0)) + 1
    parts = [slice(begin, end) for begin, end in pairwise([0, *breaks.tolist(), len(curve.steps)])]
    return [part for part in parts if curve.finite[part].all()]


def _across(curve: DrawnCurve, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip((steps - curve.first) / max(1, curve.last - curve.first) * 100, 0.0, 100.0)


def _heights(curve: DrawnCurve, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances from the top of the drawing."""
    with np.errstate(invalid="ignore", divide="ignore"):
        # Divided by 4, differences of huge values do not overflow.
        scaled = np.log(values) if curve.logarithmic else values / 4
        ends = np.array([curve.bottom, curve.top])
        bottom, top = np.log(ends) if curve.logarithmic else ends / 4
        share = (scaled - bottom) / (top - bottom) if top > bottom else np.full(len(values), 0.5)
    return (1 - MARGIN_SHARE - share * (1 - 2 * MARGIN_SHARE)) * HEIGHT


def _path(across: NDArray[np.float64], down: NDArray[np.float64]) -> str:
    points = [f"{x:.1f} {y:.1f}" for x, y in zip(across.tolist(), down.tolist(), strict=True)]
    return f"M{points[0]}h0" if len(points) == 1 else f"M{'L'.join(points)}"


def _values(curve: DrawnCurve) -> tuple[Tick, ...]:
    values = decades(curve.bottom, curve.top) if curve.logarithmic else round_numbers(curve.bottom, curve.top, 5)
    if len(values) < 2:
        values = [curve.bottom, curve.top] if curve.top > curve.bottom else [curve.bottom]
    down = _heights(curve, np.asarray(values)) / HEIGHT * 100
    return tuple(Tick(float(at), number_text(value)) for at, value in zip(down, values, strict=True))


def _steps(curve: DrawnCurve) -> tuple[Tick, ...]:
    steps = [value for value in round_numbers(curve.first, curve.last, 5) if value == int(value)]
    steps = steps if len(steps) > 1 else sorted({float(curve.first), float(curve.last)})
    across = _across(curve, np.asarray(steps))
    return tuple(Tick(float(at), f"{int(value):,}") for at, value in zip(across, steps, strict=True))
