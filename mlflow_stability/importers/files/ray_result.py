"""Chooses what matters of the hundreds of numbers that Ray's RLlib and Tune write for each iteration.

In: the names in a row of `result.json`, or of the columns of `progress.csv`. Out: those to read. Guarantees: only where
the names are Ray's; of one number under several names one; settings, timers and the machine's load are no metrics; what
the user reports to Tune, or logs as custom metrics, is read.
"""

from __future__ import annotations

import re
from functools import lru_cache

_ITS_OWN = frozenset({"training_iteration", "time_this_iter_s", "time_total_s"})
_OF_RLLIB = re.compile(r"(?:^|/)episode_(?:reward|return)_mean$|/learner_stats/|(?:^|/)learners/")
_NO_METRIC = re.compile(
    r"(?:^|/)(?:config|hist_stats|perf|\w*timers|sampler_perf|sampler_results|counters|fault_tolerance|\w+_connector)/"
    r"|^(?:time_since_restore|time_this_iter_s|time_total_s|timesteps_since_restore|iterations_since_restore|pid)$"
)
_TELLING = re.compile(
    r"reward|return|episode_len|loss|(?:^|_)kl|entropy|gnorm|grad|(?:^|_)lr$|learning_rate|explained_var|td_error"
    r"|q_values|accuracy|alpha|temperature|score",
    re.IGNORECASE,
)
_CLOCK = frozenset({"training_iteration", "timesteps_total", "timestamp", "num_env_steps_sampled_lifetime"})


@lru_cache(maxsize=256)
def chosen(names: tuple[str, ...]) -> frozenset[str]:
    """The names that are worth reading; all of them where they are not Ray's."""
    every = frozenset(names)
    if not every.issuperset(_ITS_OWN):
        return every
    metrics = {name for name in every if _NO_METRIC.search(name) is None}
    if any(_OF_RLLIB.search(name) for name in every):
        metrics = {name for name in metrics if "custom_metrics/" in name or _TELLING.search(name.rpartition("/")[2])}
    return every & (metrics | _CLOCK)
