"""Which of the numbers that were logged together is the step, and which the epoch.

In: the names in a row. Out: the one that counts steps, the one that counts epochs.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from mlflow_stability.vocabulary.text import split_words

_STEPS = (
    ("global step", "globalstep", "g step"),
    ("step", "training step", "train step", "optimizer step", "update step", "opt step"),
    ("total timesteps", "timesteps", "num timesteps", "env steps", "num env steps", "total steps done"),
    ("timestep", "env step", "total timestep"),
    ("iteration", "iter", "n iter", "global iter", "num iter", "it", "iters"),
    ("num updates", "updates", "update num", "n updates total"),
    ("steps", "iterations", "num steps", "步数", "迭代", "迭代次数"),
    ("total steps",),
    ("batch", "batch idx", "batch id", "minibatch", "mini batch", "batches", "s"),
)
_EPOCHS = frozenset({"epoch", "epochs", "ep", "epoch num", "n epoch", "epoch idx", "end of epoch"}) | {
    "轮次",
    "轮数",
    "周期",
}
_TIMES = frozenset({"timestamp", "wall time", "time stamp", "unix time", "created at"})
AGES_AGO = 1e8
"""A time above is one since 1970, in seconds or something shorter, and not since the start."""
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""A time above the first is counted so many times a second: in nano-, micro- or milliseconds."""
_OF_NO_MATTER = frozenset(
    {"trainer", "train", "training", "time", "valid", "val", "eval", "test", "rollout", "perf", "progress"}
    | {"completed", "finished", "current", "at", "this", "the"}
)
_RANKS = {name: rank for rank, names in enumerate(_STEPS) for name in names}


@lru_cache(maxsize=4096)
def step_rank(name: str) -> int:
    """How likely a name is the step's, 0 first; -1: not at all."""
    return _RANKS.get(_plain(name), -1)


def counts_within_epochs(name: str) -> bool:
    """Whether a step's name may be one that begins anew in each epoch: an iteration, a batch."""
    return "iter" in name.lower() or "batch" in name.lower()


@lru_cache(maxsize=4096)
def is_epoch(name: str) -> bool:
    """Whether a name counts epochs."""
    return _plain(name) in _EPOCHS


@lru_cache(maxsize=4096)
def is_time(name: str) -> bool:
    """Whether a name holds the seconds since 1970."""
    words = " ".join(word.lower() for word in split_words(name))
    return words in _TIMES or _plain(name) in _TIMES or name == "_timestamp"


def per_second(time: float) -> float:
    """How many of the units of a time since 1970 are a second: 1000 where it is in milliseconds."""
    return next((unit for above, unit in _UNITS if time > above), 1.0)


def step_name(names: Iterable[str]) -> str | None:
    """The name of the step among these."""
    ranked = [(step_rank(name), name) for name in names if step_rank(name) >= 0]
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


def _plain(name: str) -> str:
    words = [word.lower() for word in split_words(name)]
    kept = [word for word in words if word not in _OF_NO_MATTER]
    return " ".join(kept or words)
