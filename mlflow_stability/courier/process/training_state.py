"""What is known of a training at one moment; its journal is read after that was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_stability.journal.last_words import closing_in
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The training at this moment."""

    alive: bool
    """It may still append to its journal."""
    killed_for_memory: Callable[[], bool]
    last_words: Mapping[str, Any] = field(default_factory=dict)
    """What it could not write into its journal."""
    journal_deleted: bool = False
    stalled: Finding | None = None
    """Set while it hangs."""

    @property
    def closing(self) -> Closing | None:
        """How it said that it ended, where the journal had no room for that."""
        return closing_in(self.last_words)
