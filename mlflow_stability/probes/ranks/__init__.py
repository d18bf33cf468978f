"""What several processes that train together have measured, combined."""

from __future__ import annotations

from mlflow_stability.probes.ranks.rank_exchange import RankExchange, RankExchanges, Silence, gloo_group
from mlflow_stability.probes.ranks.rank_numbers import EVERY
from mlflow_stability.probes.ranks.rank_row import Orders, RankRow, RankTable, Sums, Votes, norm_of, z_of_all
from mlflow_stability.probes.ranks.rank_watch import RankWatch

__all__ = [
    "EVERY",
    "Orders",
    "RankExchange",
    "RankExchanges",
    "RankRow",
    "RankTable",
    "RankWatch",
    "Silence",
    "Sums",
    "Votes",
    "gloo_group",
    "norm_of",
    "z_of_all",
]
