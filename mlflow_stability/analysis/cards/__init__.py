"""Condensed runs that a comparison is made from: read, judged and cached, by several processes."""

from __future__ import annotations

from mlflow_stability.analysis.cards.card_cache import cache_folder

__all__ = ["cache_folder"]
