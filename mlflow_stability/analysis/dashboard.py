"""Draw the health of a run, wherever it was recorded, with the findings that `diagnose` reports."""

from __future__ import annotations

import os
from collections import Counter

from mlflow_stability.analysis.diagnose import history_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.figures.curve import Curve, curve_of
from mlflow_stability.figures.dashboard import dashboard as draw
from mlflow_stability.figures.dashboard_data import MAX_CURVES, QUANTITIES, ROLLBACK, DashboardData, Mark, MarkSketch
from mlflow_stability.figures.style import Picture
from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.argument import check_arguments
from mlflow_stability.vocabulary.result import Diagnosis
from mlflow_stability.vocabulary.run import Metric, RunHistory


@check_arguments
def dashboard(run_id_or_path: str | os.PathLike[str], tracking_uri: str | None = None) -> Picture:
    """The health of a run on one page: what happened, loss, gradient norm, learning rate, update ratio.

    Args:
        run_id_or_path: What ``diagnose`` takes.
        tracking_uri: The server of the run, if it is not ``MLFLOW_TRACKING_URI``.

    Returns:
        A matplotlib figure: ``figure.savefig("run.png")``, or the last line of a notebook's cell.

    Raises:
        StabilityError: What ``diagnose`` raises.

    Example:

        >>> figure = dashboard("mlruns_fixtures/0/rescue")
        >>> figure.savefig("run.png")
    """
    history = history_of(run_id_or_path, tracking_uri)
    return draw(board_of(history, diagnosis_of(history)))


def board_of(history: RunHistory, diagnosis: Diagnosis) -> DashboardData:
    curves: list[Curve] = []
    left_out: Counter[str] = Counter()
    for quantity in QUANTITIES:
        wanted = [metric for metric in history.of(quantity) if _is_drawn(metric)]
        curves.extend(curve_of(metric.series) for metric in wanted[:MAX_CURVES])
        left_out[quantity] = max(0, len(wanted) - MAX_CURVES)
    return DashboardData(history.name, diagnosis.verdict, tuple(curves), _marks(history, diagnosis), left_out)


def _is_drawn(metric: Metric) -> bool:
    """Whether a metric is of the whole model or of a group; layers have pictures of their own."""
    meaning = metric.meaning
    by_layer = meaning.quantity in ("grad_norm", "update_ratio") and meaning.place and not is_group(meaning.place)
    return not by_layer and not meaning.duplicate_of and not meaning.bookkeeping


def _marks(history: RunHistory, diagnosis: Diagnosis) -> tuple[Mark, ...]:
    """Return marks of the findings, and of the rollbacks with the steps that they led back to."""
    turns = MarkSketch()
    for event in history.events or ():
        if event.kind == ROLLBACK:
            turns.add_event(event, event.step)
    findings = (finding for finding in diagnosis.findings if finding.kind != ROLLBACK or not turns.marks())
    return (*turns.marks(), *(Mark(f.kind, f.severity, f.start, max(f.start, f.end), f.count) for f in findings))
