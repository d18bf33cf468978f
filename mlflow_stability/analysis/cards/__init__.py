"""The condensed runs that a comparison is made from: read, judged and remembered, by several processes."""

from __future__ import annotations

from mlflow_stability.analysis.cards.card_cache import cache_folder
from mlflow_stability.analysis.cards.cards import HowToRead, MadeCards, Progress, make_cards, run_meant
from mlflow_stability.analysis.cards.one_card import cards_at

__all__ = [
    "HowToRead",
    "MadeCards",
    "Progress",
    "cache_folder",
    "cards_at",
    "make_cards",
    "run_meant",
]
