"""What a run should know about itself."""

from __future__ import annotations

from mlflow_stability.session.run_facts.facts_probe import FactsProbe

__all__ = ["FactsProbe"]
