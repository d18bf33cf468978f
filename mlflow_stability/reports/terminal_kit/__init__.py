"""What is drawn with characters."""

from __future__ import annotations

from mlflow_stability.reports.terminal_kit.braille_curve import GUTTER, axis, draw, number_text
from mlflow_stability.reports.terminal_kit.marks import mark_line
from mlflow_stability.reports.terminal_kit.writer import OUTCOME_STYLES, TerminalWriter, written

__all__ = ["GUTTER", "OUTCOME_STYLES", "TerminalWriter", "axis", "draw", "mark_line", "number_text", "written"]
