"""What the dashboard of a run is drawn from, whether it comes from a journal, a run or somebody's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlflow_stability.figures.run_page.curve import Curve
from mlflow_stability.figures.run_page.mark import Mark

QUANTITIES = (
    "loss",
    "val_loss",
    "grad_norm",
    "grad_norm_clipped",
    "learning_rate",
    "learning_rate_used",
    "update_ratio",
    "skipped_steps",
)
"""The quantities that the dashboard shows."""
MOST_CURVES = 5
"""How many curves of one quantity are shown; an optimizer may have a group for each layer."""


@dataclass(frozen=True, slots=True, eq=False)
class DashboardData:
    """One run."""

    title: str
    subtitle: str
    curves: tuple[Curve, ...]
    """Of the quantities in `QUANTITIES`; what is missing was not measured."""
    marks: tuple[Mark, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Of a quantity, how many curves there are beside these."""

    def of(self, quantity: str) -> list[Curve]:
        """The curves of a quantity that have a point, the one of the whole model first."""
        found = [curve for curve in self.curves if curve.signal.quantity == quantity and len(curve)]
        return sorted(found, key=lambda curve: curve.signal.place != "")
