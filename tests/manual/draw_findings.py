"""Draws the example pictures of the findings reference, from the runs that are recorded in `mlruns_fixtures`.

python tests/manual/draw_findings.py      draws mlflow_stability/manual/findings/*.png again, in seconds
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from architecture.repository import PACKAGE, ROOT
from matplotlib.ticker import FuncFormatter, NullFormatter

from mlflow_stability.analysis.diagnose import diagnose, history_of
from mlflow_stability.figures.style import FAINT, LINES, SEVERITY, Picture, new_figure, our_style, png
from mlflow_stability.kinds.catalog import documentation
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Metric, RunHistory

RUNS = ROOT / "mlruns_fixtures" / "0"
FOLDER = PACKAGE / "manual" / "findings"
WIDTH, HEIGHT = 7.0, 1.9
WIDE_RANGE = 30
"""Minimum ratio of the largest to the smallest value of a curve for a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Example:
    """A finding of a recorded run, and the curve that it was found in."""

    run: str
    episode: Finding
    metric: Metric


def examples() -> dict[str, Example]:
    """For each finding that a curve of a recorded run shows: the run that is named after it, else the first."""
    by_name: dict[str, Example] = {}
    for run in sorted(path.parent for path in RUNS.glob("*/meta.yaml")):
        history = history_of(run)
        for episode in diagnose(run).findings:
            metric = _metric_of(episode, history)
            if metric is not None and (episode.kind not in by_name or episode.kind == run.name):
                by_name[episode.kind] = Example(run.name, episode, metric)
    return by_name


def _metric_of(episode: Finding, history: RunHistory) -> Metric | None:
    """The curve that the episode is about: the one it names, else the first that its finding judges, at its place."""
    named = [metric for metric in history.metrics if metric.name == episode.metric]
    if named:
        return named[0]
    for quantity in documentation(episode.kind).quantities:
        here = [metric for metric in history.of(quantity) if metric.series.signal.place.startswith(episode.place)]
        if here:
            return here[0]
    return None


def picture(example: Example) -> Picture:
    """The curve, the stretch that the finding is about, and its first step."""
    series, episode = example.metric.series, example.episode
    steps, values = series.steps.astype(float), series.values
    finite = values[np.isfinite(values)]
    colour = SEVERITY[episode.severity]
    with our_style():
        figure = new_figure(HEIGHT, WIDTH)
        axes = figure.subplots()
        axes.plot(steps, values, color=LINES[0], linewidth=1.1, marker="." if len(steps) < 80 else "", markersize=4)
        axes.axvspan(episode.start, max(episode.end, episode.start), color=colour, alpha=0.15, linewidth=0)
        axes.axvline(episode.start, color=colour, linewidth=1.2)
        for at in steps[~np.isfinite(values)][:1]:
            axes.axvline(at, color=FAINT, linewidth=0.8, linestyle=":")
        if finite.min() > 0 and finite.max() > WIDE_RANGE * finite.min():
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        place = f" in {series.signal.place}" if series.signal.place else ""
        axes.set_title(
            f"{episode.kind}{place}: {episode.severity.name} at step {episode.start}", loc="left", fontsize=9
        )
        axes.set(xlabel="step", ylabel=series.signal.quantity.replace("_", " "), xlim=(steps[0], steps[-1]))
        axes.margins(y=0.08)
        figure.tight_layout()
    return figure


def main() -> None:
    """Draw them all, and remove those that no recorded run shows any more."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    for kind, example in examples().items():
        (FOLDER / f"{kind}.png").write_bytes(png(picture(example)))
        sys.stdout.write(f"{kind}: {example.run}, {example.metric.name}, step {example.episode.start}\n")


if __name__ == "__main__":
    main()
