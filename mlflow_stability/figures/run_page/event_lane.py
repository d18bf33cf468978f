"""Draws what happened on the way: a row for each kind, a bar for each stretch.

In: marks. Out: a panel of a few thin rows. Guarantees: the worst kinds have rows of their own, the rest share one, and
how often each happened stands beside it.
"""

from __future__ import annotations

from matplotlib.axes import Axes

from mlflow_stability.figures.run_page.mark import ROLLBACK, Mark, grouped
from mlflow_stability.figures.style import FAINT, GRID, SEVERITY, SMALL_SIZE, TURNED_BACK, shown

MOST_ROWS = 6
_NARROWEST = 0.004
"""The share of the width that a bar takes at least."""


def rows_of(marks: tuple[Mark, ...]) -> list[tuple[str, list[Mark]]]:
    """The rows, rollbacks first and then the worst; what is beyond `MOST_ROWS` is put into the last."""
    kinds: dict[str, list[Mark]] = {}
    for mark in marks:
        kinds.setdefault(mark.kind, []).append(mark)
    ranked = sorted(kinds.items(), key=lambda one: (one[0] != ROLLBACK, -max(each.severity for each in one[1])))
    if len(ranked) <= MOST_ROWS:
        return ranked
    rest = [mark for _, found in ranked[MOST_ROWS - 1 :] for mark in found]
    return [*ranked[: MOST_ROWS - 1], (f"{len(ranked) - MOST_ROWS + 1} other types", rest)]


def draw_events(axes: Axes, rows: list[tuple[str, list[Mark]]]) -> None:
    """Draw the rows into axes whose horizontal limits are set."""
    left, right = axes.get_xlim()
    least = (right - left) * _NARROWEST
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [shown(kind.replace("_", " "), 23) for kind, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for number, (_, marks) in enumerate(rows):
        for mark in grouped(marks, int(least)):
            width = max(least, mark.end - mark.start)
            colour = TURNED_BACK if mark.kind == ROLLBACK else SEVERITY[mark.severity]
            axes.barh(number, width, left=mark.start - least / 2, height=0.6, color=colour, zorder=3)
        count = sum(mark.count for mark in marks)
        axes.text(
            1.008, number, f"{count:,} ×", transform=axes.get_yaxis_transform(), va="center", color=FAINT,
            fontsize=SMALL_SIZE,
        )  # fmt: skip
