"""What several processes that train together have measured, combined."""

from __future__ import annotations

from mlflow_stability.probes.ranks.own_group import gloo_group
from mlflow_stability.probes.ranks.presence import Presence
from mlflow_stability.probes.ranks.rank_exchange import ANSWER_SECONDS, LOST
from mlflow_stability.probes.ranks.rank_numbers import EVERY
from mlflow_stability.probes.ranks.rank_peaks import z_of_all
from mlflow_stability.probes.ranks.rank_watch import RankWatch
from mlflow_stability.probes.ranks.sum_over_ranks import RankTable

__all__ = [
    "ANSWER_SECONDS",
    "EVERY",
    "LOST",
    "Presence",
    "RankTable",
    "RankWatch",
    "gloo_group",
    "z_of_all",
]
