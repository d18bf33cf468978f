"""What is drawn with characters."""

from __future__ import annotations

from mlflow_stability.reports.terminal_kit.braille_curve import GUTTER, axis, draw, number_text
from mlflow_stability.reports.terminal_kit.marks import mark_line
from mlflow_stability.reports.terminal_kit.pen import OUTCOME_STYLES, Pen, written

__all__ = ["GUTTER", "OUTCOME_STYLES", "Pen", "axis", "draw", "mark_line", "number_text", "written"]
