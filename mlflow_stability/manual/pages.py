"""The pages of the manual, in the order in which to read them.

In: the name of a page. Out: its title, and its text as Markdown. Guarantees: a page needs no network, no torch and no
MLflow; what is made from the code cannot differ from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.manual import options, presets, python_api, references, signals

FOLDER = Path(__file__).parent
MAP = FOLDER.parent / "README.md"
"""The map of the code, which lies where those who read code look first."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    name: str
    """What is typed behind `mlflow-stability manual`, and the name of the file."""
    title: str
    make: Callable[[], str] | None = None
    """Makes the text from the code; of other pages the text is a file beside this one."""

    def text(self) -> str:
        """The page, as Markdown."""
        return self.make() if self.make else (FOLDER / f"{self.name}.md").read_text(encoding="utf-8")


PAGES = (
    Page("getting_started", "Getting started"),
    Page("from_other_tools", "From other tools"),
    Page("mlflow", "Watching a run in MLflow"),
    Page("diagnosis", "Reading a diagnosis"),
    Page("recovery", "Rollback and recovery"),
    Page("model_check", "Checking a model"),
    Page("simulations", "Practising on failures"),
    Page("comparing", "Comparing runs and CI gates"),
    Page("assistants", "Assistants"),
    Page("alerts", "Alerts and metrics elsewhere"),
    Page("attention", "Attention and representations"),
    Page("signals", "Signals reference", signals.page),
    Page("findings", "Findings reference", references.findings),
    Page("causes", "Causes reference", references.causes),
    Page("options", "Options", options.page),
    Page("presets", "Presets", presets.page),
    Page("python_api", "Python API", python_api.page),
    Page("log_formats", "Log formats"),
    Page("frameworks", "Frameworks"),
    Page("distributed", "Distributed training"),
    Page("costs", "Costs and guarantees"),
    Page("troubleshooting", "Troubleshooting"),
    Page("limits", "Limits"),
    Page("design", "Design and glossary", lambda: MAP.read_text(encoding="utf-8")),
    Page("contributing", "Contributing"),
    Page("changes", "Changes"),
)
"""All of them but the page of the command line, which only the command line itself can make."""
