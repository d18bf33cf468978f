"""Writes the description of a run while it trains: how far it is, and how it goes.

In: the story of a recording. Out: Markdown, its most telling words first, for MLflow shows five lines of it.
Guarantees: names and messages from a training stay text.
"""

from __future__ import annotations

from collections import Counter

from mlflow_stability.courier.sinks.run_summary import RunSummary, events_in_words
from mlflow_stability.reports.escape import markdown
from mlflow_stability.tracking.write import section_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.text import times

SHOWN = {"loss": "loss", "grad_norm": "gradient norm", "learning_rate": "learning rate"}
"""The quantities of the line of figures, and their words."""
FOUND = frozenset({Severity.CRITICAL.name, Severity.WARNING.name})


def live_description(story: RunSummary, findings: Counter[str]) -> str:
    """The section of a run that is being trained."""
    how = events_in_words(findings) if any(findings[each] for each in FOUND) else "healthy"
    back = f", rolled back {times(story.rollbacks)}" if story.rollbacks else ""
    event = story.stalled or story.worst_event
    said = [] if event is None else [f"**Finding:** {markdown(story.told(event))}"]
    said += [f"**What to do:** {markdown(str(event.remedies[0]))}"] if event is not None and event.remedies else []
    return section_of(f"running, step {story.last_step:,}{back}, {how}", [*said, figures(story)])


def figures(story: RunSummary) -> str:
    """The newest values: ``loss 0.53 · gradient norm 1.2 · 1 rollback``."""
    values = {words: story.value(quantity) for quantity, words in SHOWN.items()}
    said = [f"{words} {value:.4g}" for words, value in values.items() if value is not None]
    seconds = story.value("step_time")
    said += [f"{1 / seconds:.3g} steps/s"] if seconds else []
    said += [f"rollbacks {story.rollbacks}"] if story.rollbacks else []
    said += [f"skipped steps {story.skipped_steps}"] if story.skipped_steps else []
    return " · ".join(said)
