"""What is drawn with characters."""

from __future__ import annotations

from mlflow_stability.reports.terminal_kit.curve import GUTTER, axis, draw, mark_line
from mlflow_stability.reports.terminal_kit.writer import OUTCOME_STYLES, TerminalWriter, draw_section, written

__all__ = [
    "GUTTER",
    "OUTCOME_STYLES",
    "TerminalWriter",
    "axis",
    "draw",
    "draw_section",
    "mark_line",
    "written",
]
