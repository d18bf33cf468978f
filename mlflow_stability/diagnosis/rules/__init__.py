"""Judgements of whole curves."""

from __future__ import annotations

from mlflow_stability.diagnosis.rules.registry import RULES
from mlflow_stability.diagnosis.rules.rule import Rule

__all__ = ["RULES", "Rule"]
