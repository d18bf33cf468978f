"""Questions that people who train models ask, answered from a run: a table of questions, and one of decisions."""

from __future__ import annotations

from mlflow_stability.diagnosis.checklist.checklist import Checklist, ChecklistItem, checklist_of

__all__ = ["Checklist", "ChecklistItem", "checklist_of"]
