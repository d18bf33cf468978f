"""From bytes to clean lines and numbers."""

from __future__ import annotations

from mlflow_stability.importers.decode.harmless import reason_of, shown_path, shown_text
from mlflow_stability.importers.decode.log_text import (
    LONGEST_LINE,
    blocks_of,
    encoding_of,
    head_of,
    lines_of,
    opened,
    plain,
    text_of,
)
from mlflow_stability.importers.decode.number_formats import LOOKED_AT, has_decimal_commas, with_points
from mlflow_stability.importers.decode.python_text import as_json

__all__ = [
    "LONGEST_LINE",
    "LOOKED_AT",
    "as_json",
    "blocks_of",
    "encoding_of",
    "has_decimal_commas",
    "head_of",
    "lines_of",
    "opened",
    "plain",
    "reason_of",
    "shown_path",
    "shown_text",
    "text_of",
    "with_points",
]
