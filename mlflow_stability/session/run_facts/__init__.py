"""Facts and settings of the run: environment, model, optimizer, and their changes."""

from __future__ import annotations

from mlflow_stability.session.run_facts.facts_probe import FactsProbe

__all__ = ["FactsProbe"]
