"""The forms that a comparison can take, by the names that people type; the same as those of a diagnosis.

In: a name and a `Comparison`. Out: text. What a form needs is loaded when it is asked for.
"""

from __future__ import annotations

from importlib import import_module

from mlflow_stability.vocabulary.result.comparison import Comparison

FORMATS = {
    "rich": "mlflow_stability.reports.comparison.comparison_terminal",
    "json": "mlflow_stability.reports.comparison.comparison_json",
    "csv": "mlflow_stability.reports.comparison.comparison_csv",
    "markdown": "mlflow_stability.reports.comparison.comparison_markdown",
    "html": "mlflow_stability.reports.comparison.comparison_html",
}
"""Where each is written."""


def render(comparison: Comparison, form: str) -> str:
    """The comparison in one of the forms."""
    text: str = import_module(FORMATS[form]).render(comparison)
    return text
