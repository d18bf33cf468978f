"""Recognise fields of a row by their names: step, epoch, time, a metric's name and value, the data split."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from mlflow_stability.vocabulary.text.metric_names import HELD_OUT, LOSSES, TRAIN, metric_meanings, split_words

_STEPS = (
    ("global step", "globalstep", "g step"),
    ("step", "training step", "train step", "optimizer step", "update step", "opt step"),
    ("total timesteps", "timesteps", "num timesteps", "env steps", "num env steps", "total steps done"),
    ("timestep", "env step", "total timestep"),
    ("iteration", "iter", "n iter", "global iter", "num iter", "it", "iters", "itr"),
    ("num updates", "updates", "update num", "n updates total"),
    ("steps", "iterations", "num steps", "步数", "迭代", "迭代次数"),
    ("total steps",),
    ("update", "round", "communication round", "comm round", "global round", "federated round", "fl round"),
    ("batch", "batch idx", "batch id", "minibatch", "mini batch", "batches", "s"),
)
BATCH_RANK = len(_STEPS) - 1  # that of the least certain names: a batch may be its size
_STEP_RANKS = {name: rank for rank, names in enumerate(_STEPS) for name in names}
_EPOCHS = frozenset(
    {"epoch", "epochs", "ep", "epoch num", "n epoch", "epoch idx", "end of epoch"}
    | {"epoca", "época", "epoque", "époque", "epoche", "轮次", "轮数", "周期"}
)
_TIMES = frozenset({"timestamp", "wall time", "time stamp", "unix time", "created at"})
_DURATION = re.compile(r"(?:^|[^a-z])time[ _./(\[-]+(?:in[ _])?(?:s|sec|secs|seconds|ms|min|mins)\b", re.IGNORECASE)
"""The name of a duration with its unit, such as `time_s`, whose unit alone would be a step: `s 10/500`."""
_IGNORED_WORDS = frozenset(
    TRAIN
    | HELD_OUT
    | {"trainer", "time", "rollout", "perf", "progress"}
    | {"completed", "finished", "current", "at", "this", "the"}
)
MIN_ABSOLUTE_TIME = 1e8
"""A larger time counts from 1970, in seconds or a shorter unit; a smaller one from the start of the training."""
_TIME_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""A time above the first number has this many units a second: nano-, micro- or milliseconds."""

_METRIC_NAMES = ("metric", "metric_name", "tag", "key", "name")
_METRIC_VALUES = ("value", "metric_value", "val")

_RAY_OWN = frozenset({"training_iteration", "time_this_iter_s", "time_total_s"})
_RLLIB = re.compile(r"(?:^|/)episode_(?:reward|return)_mean$|/learner_stats/|(?:^|/)learners/")
_RAY_NO_METRIC = re.compile(
    r"(?:^|/)(?:config|hist_stats|perf|\w*timers|sampler_perf|sampler_results|counters|fault_tolerance|\w+_connector)/"
    r"|^(?:time_since_restore|time_this_iter_s|time_total_s|timesteps_since_restore|iterations_since_restore|pid)$"
)
_RLLIB_METRIC = re.compile(
    r"reward|return|episode_len|loss|(?:^|_)kl|entropy|gnorm|grad|(?:^|_)lr$|learning_rate|explained_var|td_error"
    r"|q_values|accuracy|alpha|temperature|score",
    re.IGNORECASE,
)
_RAY_COUNTERS = frozenset({"training_iteration", "timesteps_total", "timestamp", "num_env_steps_sampled_lifetime"})

_MAX_SPLIT_TEXT = 80
_SPLIT_FIELDS = frozenset({"split", "mode", "phase", "stage", "set", "subset", "partition"})
"""Fields whose text begins with the word: `valid set`."""
_GENERAL_FIELDS = frozenset({"type", "dataset", "kind", "event"})
"""Fields that say many things: every word of their text has to be about held-out data."""
_BESIDE_SPLIT_FIELDS = frozenset({"data", "dataset", "log", "row", "metric", "name"})
"""Further words of the name of a split field: `data_split`, `log_type`."""
_AFTER_SPLIT_WORDS = frozenset(
    {"set", "data", "dataset", "split", "step", "epoch", "phase", "loop", "end", "ended", "log", "logs", "metrics"}
    | {"history", "results", "result", "stats", "curve", "losses", "loss"}
)
"""Words that may follow: `val_epoch_end`, and `val_history` as the name of a list."""
_SPLIT_VERBS = {"validate": "val", "evaluate": "eval", "evaluating": "eval"}
_SPLIT_WORDS = frozenset({"train", "training", "val", "valid", "validation", "eval", "test"})
"""A metric with one of these words in its name names its split itself."""


@lru_cache(maxsize=4096)
def step_rank(name: str) -> int:
    """Return how likely a name is that of the step, 0 first; -1 for one that is not."""
    return -1 if _DURATION.search(name) else _STEP_RANKS.get(_main_words(name), -1)


def step_name(names: Iterable[str]) -> str | None:
    return min((name for name in names if step_rank(name) >= 0), key=step_rank, default=None)


def counts_episodes(name: str) -> bool:
    """Whether a name counts episodes, as only reinforcement learning does: a metric, from which that is known."""
    return _main_words(name) in ("episode", "episodes")


def counts_within_epochs(name: str) -> bool:
    """Whether a step of this name may begin again in each epoch: an iteration, a batch."""
    return "iter" in name.lower() or "batch" in name.lower() or _main_words(name) in ("it", "itr")


@lru_cache(maxsize=4096)
def is_epoch(name: str) -> bool:
    if name.lower().endswith("time"):  # the seconds that an epoch took
        return False
    return _main_words(name).removeprefix("in ") in _EPOCHS  # not so with a step: `best accuracy 0.7 in batch 10`


@lru_cache(maxsize=4096)
def is_time(name: str) -> bool:
    """Whether a name holds the time since 1970."""
    words = " ".join(word.lower() for word in split_words(name))
    return words in _TIMES or _main_words(name) in _TIMES or name == "_timestamp"


def units_per_second(time: float) -> float:
    """Return the unit of a time since 1970: 1000 where it is in milliseconds."""
    return next((unit for above, unit in _TIME_UNITS if time > above), 1.0)


def _main_words(name: str) -> str:
    words = [word.lower() for word in split_words(name)]
    return " ".join([word for word in words if word not in _IGNORED_WORDS] or words)


@lru_cache(maxsize=4096)
def long_format(texts: tuple[str, ...], numbers: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the fields of a metric's name and value where rows hold one value: `{"metric": "loss", "value": 0.5}`.

    None where rows hold other numbers than step, epoch and time, too.
    """
    name = _field_among(texts, _METRIC_NAMES)
    value = _field_among(numbers, _METRIC_VALUES)
    if name is None or value is None:
        return None
    others = (number for number in numbers if number != value)
    counts = all(step_rank(other) >= 0 or is_epoch(other) or is_time(other) for other in others)
    return (name, value) if counts else None


def _field_among(fields: Iterable[str], names: Sequence[str]) -> str | None:
    plain = [(field.strip().lower().replace(" ", "_"), field) for field in fields]
    return next((field for name in names for spelled, field in plain if spelled == name), None)


@lru_cache(maxsize=256)
def metric_names(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names worth reading of a result of Ray's Tune or RLlib; all names where they are not Ray's.

    Settings, timers and the load of the machine are left out; what users report or log as custom metrics is read.
    """
    fields = frozenset(names)
    if not fields.issuperset(_RAY_OWN):
        return fields
    metrics = {name for name in fields if _RAY_NO_METRIC.search(name) is None}
    if any(_RLLIB.search(name) for name in fields):
        metrics = {
            name for name in metrics if "custom_metrics/" in name or _RLLIB_METRIC.search(name.rpartition("/")[2])
        }
    return fields & (metrics | _RAY_COUNTERS)


@lru_cache(maxsize=4096)
def is_split_field(field: str) -> bool:
    """Whether the text of a field of this name may name the data on which its row was measured."""
    words = {word.lower() for word in split_words(field)}
    own = words & (_SPLIT_FIELDS | _GENERAL_FIELDS)
    return bool(own) and words <= own | _BESIDE_SPLIT_FIELDS


@lru_cache(maxsize=4096)
def held_out_word(field: str, text: str) -> str:
    """Return the word for held-out data in the text of a split field, such as ``val``; empty for other texts.

    A data set called `val2017` and a phase `warmup` are no such words, nor is a stage `dev`, which may be a machine.
    """
    fields = {word.lower() for word in split_words(field)}
    words = [split_verb(word.lower()) for word in split_words(text[:_MAX_SPLIT_TEXT])]
    if not fields & _SPLIT_FIELDS:
        return _first_if_alone(words, HELD_OUT)
    is_split = bool(words) and words[0] in HELD_OUT and not ("stage" in fields and words[0] == "dev")
    return words[0] if is_split else ""


def split_verb(word: str) -> str:
    """Return the word for the data of an evaluation that a verb names: ``eval`` of ``evaluating``."""
    return _SPLIT_VERBS.get(word, word)


@lru_cache(maxsize=4096)
def split_word(text: str) -> str:
    """Return the word for training or held-out data in the name of a list: `val` of `val_history`."""
    return _first_if_alone([word.lower() for word in split_words(text[:_MAX_SPLIT_TEXT])], TRAIN | HELD_OUT)


def _first_if_alone(words: Sequence[str], splits: frozenset[str]) -> str:
    return words[0] if words and words[0] in splits and _AFTER_SPLIT_WORDS.issuperset(words[1:]) else ""


def held_out_in_row(row: Mapping[str, object]) -> str:
    """Return the word of the first field that names held-out data."""
    for field, text in row.items():
        if isinstance(text, str) and is_split_field(field) and (word := held_out_word(field, text)):
            return word
    return ""


@lru_cache(maxsize=4096)
def with_split(split: str, name: str) -> str:
    """Return the name of a metric that was measured on this split: `val/loss`, unless its name says a split itself."""
    names_split = not _SPLIT_WORDS.isdisjoint(word.lower() for word in split_words(name))
    return f"{split}/{name}" if split and not names_split else name


def loss_of_file(stem: str) -> str:
    """Return the name of the loss that a file of nameless numbers holds by its name; empty for any other name."""
    if LOSSES.isdisjoint(word.lower() for word in split_words(stem)):
        return ""
    return stem if metric_meanings([stem])[stem].quantity in ("loss", "val_loss") else "loss"
