"""Names of signals and of other metrics as MLflow keys, and back.

In: a `Signal` and the section of its recording; names given by others. Out: keys that every MLflow store accepts.
Guarantees: two signals, or two names, never share a key; valid names stay as they are; no key is a path prefix of
another (file stores keep keys as paths); at most 250 characters; `parse_key` returns the same signal unless its name
had to be changed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from hashlib import blake2b

from mlflow_stability.vocabulary.measured import Signal, of_the_whole
from mlflow_stability.vocabulary.text import LAYERS, read_key, topic_of

SECTION = "stability"
INSIDE = ("attention", "representations", "routing")
"""The sections whose charts are of few places; those of any other quantity have a section for each quantity."""
LONGEST_KEY = 250  # what MLflow's stores take
_LONGEST_QUANTITY = 80

# These places are no modules, as those of a second training beside the first are none: an optimizer's parameter group.
_GROUP = re.compile(r"(?:optimizer|group)_\d+(?:\.group_\d+)?")
# A dot separates a quantity from its place; a leading number was the order of the main charts in older runs.
_UNFIT_IN_QUANTITY = re.compile(r"[^\w\-]|^\d+_")

_UNFIT = re.compile(r"[^\w.\-]")


def section_of(number: int) -> str:
    """The section of the n-th recording that writes into a run at the same time: `stability`, `stability_2`, …"""
    return SECTION if number <= 1 else f"{SECTION}_{number}"


def is_group(place: str) -> bool:
    """Whether a place is one of a few that belong to the whole model, and not one of many layers."""
    return place != "" and (of_the_whole(place) or _GROUP.fullmatch(place) is not None)


def metric_key(signal: Signal, section: str = SECTION) -> str:
    """The metric key of a signal."""
    name, place = signal.quantity, signal.place
    quantity = _fitting(name, _LONGEST_QUANTITY, _UNFIT_IN_QUANTITY)
    if not place:
        return "/".join(filter(None, (section, topic_of(name), quantity)))
    if of_the_whole(place):
        return f"{section}/{_fitting(place, LONGEST_KEY - len(section) - len(quantity) - 2)}/{quantity}"
    if is_group(place):
        topic = f"{topic_of(name) or 'optimizer'}/{quantity}."
    else:
        topic = topic_of(name)
        topic = f"{topic}/{quantity}." if topic in INSIDE else f"{LAYERS}/{quantity}/"
    return f"{section}/{topic}{_fitting(place, LONGEST_KEY - len(section) - len(topic) - 1)}"


def parse_key(key: str) -> tuple[str, Signal] | None:
    """The section and the signal of a metric key; None if it is not one of ours."""
    found = read_key(key)
    return None if found is None else (found[0], Signal(found[1], found[2]))


def _fitting(name: str, longest: int, unfit: re.Pattern[str] = _UNFIT) -> str:
    """A name as it may stand in a key: unchanged where possible, else told apart by a short hash."""
    fit = unfit.sub("_", name)
    if fit == name and len(fit) <= longest and fit.strip("."):
        return fit
    mark = _mark(name)
    room = longest - len(mark) - 2
    if len(fit) > room:
        fit = f"{fit[: room // 2]}-{fit[len(fit) - room // 2 + 1 :]}"
    return f"{fit}-{mark}"


def _mark(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()


_UNFIT_FOR_MLFLOW = re.compile(r"[^\w.\- /:]")


def fitting_keys(names: Iterable[str]) -> dict[str, str]:
    """The key of each name."""
    wanted = list(dict.fromkeys(names))
    keys = {name: name for name in wanted if _fitting_for_mlflow(name) == name}
    taken = set(keys.values())
    for name in wanted:
        if name in keys:
            continue
        key = _fitting_for_mlflow(name)
        if key in taken:
            mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
            key = f"{key[: LONGEST_KEY - len(mark) - 1]}-{mark}"
        keys[name] = key
        taken.add(key)
    return {name: keys[name] for name in wanted}


def _fitting_for_mlflow(name: str) -> str:
    """A name without what MLflow's keys may not hold, and without what would make a path of it that leads elsewhere."""
    parts = [part for part in _UNFIT_FOR_MLFLOW.sub("_", name).split("/") if part not in ("", ".", "..")]
    key = "/".join(parts)[:LONGEST_KEY].rstrip("/")
    return posixpath.normpath(key) if key.strip() else "_"
