"""Draws the recall of a diagnosis over the size of an event, beside how many healthy runs it flags.

python tests/benchmarks/recall_picture.py recall.png             about five minutes on one idle core
python tests/benchmarks/recall_picture.py recall.png --quick     a fifth of the runs

A row for each kind of finding. Left: over the size in σ, the noise of one point, for each kind of noise, each number of
points and each form or length; of a plateau, which has no size, over the noise. Right: recall and the share of healthy
runs flagged with this kind, for thresholds from half to twice the usual; the three sensitivities are marked.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

if __name__ == "__main__":  # as pytest's pythonpath does
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rule_recall import KINDS, How, Judged, forms_of, judge_run, judged_healthy
from matplotlib.axes import Axes
from zoo.curves.ill import FORMS, ill_run
from zoo.curves.noise import NOISES

from mlflow_stability.figures.style import FAINT, GRID, INK, LINES, SMALL_SIZE, entitle, new_figure, our_style, png
from mlflow_stability.vocabulary.sensitivity import FACTORS

STRENGTHS = (2, 3, 4, 6, 8, 12, 18, 27, 40, 60, 90)
"""Sizes in σ."""
BETWEEN = (3.5, 7.0, 14.0, 30.0)
"""Sizes of one point of a line end here."""
POINTS = (10, 20, 40, 100, 300, 1000)
SIGMAS = (0.004, 0.12)
"""Of one point, in nats, from which the noise is drawn."""
LARGEST = 3.0
"""Nats; an event is never larger."""
COLOURS = (*LINES, "#d55e00", "#999999")
Group = Callable[[Judged], str]


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of finding."""

    kind: str
    title: str
    last: Group
    """What the third panel tells apart."""
    last_title: str


def points_of(run: Judged) -> str:
    count = run.setting.validations if run.form in ("overfitting", "spike in validation only") else run.setting.points
    at = max((each for each in POINTS if each <= count * 1.2), default=POINTS[0])
    return f"{at:,} points"


def form_of(run: Judged) -> str:
    return run.form.partition(", ")[2] or run.form.replace("spike of ", "").replace("spike that ", "").replace(
        "spike ", ""
    )


def length_of(run: Judged) -> str:
    assert run.event is not None
    share = run.event.points / max(1, run.setting.validations)
    return "last 25-45 % of the run" if share < 0.45 else "last 45-65 %" if share < 0.65 else "last 65-85 %"


ROWS = (
    Row("spike", "Spike", form_of, "form"),
    Row("divergence", "Divergence", form_of, "form"),
    Row("overfitting", "Overfitting", length_of, "length"),
    Row("plateau", "Plateau", form_of, "form"),
)


def drawn(kind: str, count: int, how: How) -> list[Judged]:
    """Runs with events of known size in σ, in every noise and of every length."""
    forms, found = forms_of(kind), []
    for seed in range(count):
        rng = np.random.default_rng([seed, 7])
        form = forms[seed % len(forms)]
        sigma = math.exp(rng.uniform(*np.log(SIGMAS)))
        fixed: dict[str, object] = {"noise": str(rng.choice(NOISES)), "sigma": sigma, "validation_sigma": sigma}
        fixed["points"] = int(rng.choice([each for each in POINTS if FORMS[form].fewest <= each <= FORMS[form].most]))
        if FORMS[form].needs_validation:
            fixed |= {"logging": "epochs", "validations": fixed["points"]}
        size = 0.0 if kind == "plateau" else min(LARGEST, sigma * float(rng.choice(STRENGTHS)))
        found.append(judge_run(ill_run(form, seed, size=size, **fixed), how))  # type: ignore[arg-type]
    return found


def recall_lines(axes: Axes, runs: Sequence[Judged], group: Group, title: str, kind: str) -> None:
    """One line for each group."""
    over_noise = kind == "plateau"
    edges = np.geomspace(*SIGMAS, 5)[1:-1] if over_noise else np.array(BETWEEN)
    names = sorted({group(each) for each in runs}, key=lambda name: (_number(name), name))
    for name, colour in zip(names, COLOURS, strict=False):
        own = [each for each in runs if group(each) == name and each.event is not None]
        x = np.array([each.setting.sigma if over_noise else each.event.size / each.setting.sigma for each in own])  # type: ignore[union-attr]
        hit = np.array([each.found for each in own], float)
        bins = np.searchsorted(edges, x)
        kept = [at for at in np.unique(bins) if (bins == at).sum() >= 4]
        middle = [float(np.exp(np.log(x[bins == at]).mean())) for at in kept]
        axes.plot(middle, [100 * hit[bins == at].mean() for at in kept], color=colour, lw=1.4, label=name)
    axes.set_xscale("log")
    axes.set_xticks([0.005, 0.01, 0.03, 0.1] if over_noise else [2, 4, 8, 16, 32, 64])
    axes.set_xticklabels(["0.005", "0.01", "0.03", "0.1"] if over_noise else ["2", "4", "8", "16", "32", "64"])
    axes.minorticks_off()
    axes.set_ylim(-2, 102)
    axes.grid(color=GRID, lw=0.6)
    axes.set_title(title, fontsize=SMALL_SIZE, color=FAINT, loc="left")
    axes.set_xlabel("noise σ, nats" if over_noise else "size, σ", fontsize=SMALL_SIZE)
    axes.legend(fontsize=6.5, frameon=False, handlelength=1.2, loc="lower left" if over_noise else "best")


def _number(name: str) -> float:
    digits = "".join(each for each in name.split()[0] if each.isdigit())
    return float(digits) if digits else 0.0


def operating_curve(axes: Axes, kind: str, points: dict[float, tuple[float, float]]) -> None:
    """Recall over false alarms; a point for each factor."""
    factors = sorted(points)
    alarms, found = zip(*(points[factor] for factor in factors), strict=True)
    axes.plot(alarms, found, color=INK, lw=1.2, marker="o", ms=3)
    for (name, factor), below in zip(FACTORS.items(), (-11, -4, 3), strict=True):
        place = {"xytext": (5, below), "textcoords": "offset points", "fontsize": SMALL_SIZE, "color": LINES[0]}
        axes.annotate(name, points[factor], **place)
    axes.set_ylim(-2, 102)
    axes.set_xlim(left=-0.1, right=max(2.0, 1.15 * max(alarms)))
    axes.grid(color=GRID, lw=0.6)
    axes.set_title(
        f"recall over false alarms; normal: {points[1.0][0]:.1f} %", fontsize=SMALL_SIZE, color=FAINT, loc="left"
    )
    axes.set_xlabel(f"healthy runs flagged with {KINDS[kind]}, %", fontsize=SMALL_SIZE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    count = 300 if options.quick else 1600
    healthy_seeds = range(32 if options.quick else 400)
    factors = sorted({0.5, *FACTORS.values(), 2.0})
    healthy = {factor: judged_healthy(healthy_seeds, How(longest=3000, factor=factor)) for factor in factors}
    with our_style():
        figure = new_figure(height=11.5, width=14.0)
        grid = figure.subplots(len(ROWS), 4)
        figure.subplots_adjust(left=0.06, right=0.985, top=0.925, bottom=0.045, hspace=0.42, wspace=0.17)
        for row, line in zip(ROWS, grid, strict=True):
            runs = drawn(row.kind, count, How())
            recall_lines(line[0], runs, lambda run: run.setting.noise.replace("_", "-"), "by noise", row.kind)
            recall_lines(line[1], runs, points_of, "by number of points", row.kind)
            recall_lines(line[2], runs, row.last, f"by {row.last_title}", row.kind)
            found: dict[float, tuple[float, float]] = {}
            for factor in factors:
                some = drawn(row.kind, count // 4, How(factor=factor))
                flagged = np.mean([KINDS[row.kind] in each.serious for each in healthy[factor]])
                found[factor] = 100 * float(flagged), 100 * float(np.mean([each.found for each in some]))
            operating_curve(line[3], row.kind, found)
            line[0].set_ylabel(f"{row.title}: recall, %")
            print(row.title, {f"x {factor:g}": f"{b:.0f} % / {a:.1f} %" for factor, (a, b) in found.items()})
        facts = f"{count:,} drawn runs of each kind; {len(healthy[1.0]):,} healthy ones, half of them made to look ill"
        entitle(figure, "What a diagnosis finds, and what it finds where nothing is", facts)
        options.file.write_bytes(png(figure))


if __name__ == "__main__":
    main()
