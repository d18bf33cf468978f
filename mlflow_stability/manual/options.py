"""The page of options: written text, and tables made from the docstrings of what is described."""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.manual.python_api import argument_rows, field_rows

FILE = Path(__file__).with_suffix(".md")


def page() -> str:
    """The text, with a table in the place of each ``<!-- ... -->``."""
    tables = {"arguments of autolog": argument_rows("autolog"), "fields of Options": field_rows("Options")}
    text = FILE.read_text(encoding="utf-8")
    for name, rows in tables.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(rows).strip())
    return text
