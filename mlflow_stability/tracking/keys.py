"""Names of signals and of other metrics as MLflow keys, and back.

Guarantees: two signals, or two names, never share a key; valid names stay as they are; no key is a path prefix of
another (file stores keep keys as paths); at most 250 characters; `parse_key` returns the same signal unless its name
had to be changed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from hashlib import blake2b

from mlflow_stability.vocabulary.measured.signal import Signal, is_whole_model
from mlflow_stability.vocabulary.text.recorded_keys import LAYERS, read_key, topic_of

PREFIX = "stability"
TOPICS_OF_FEW_PLACES = ("attention", "representations", "routing")
"""Topics whose charts are in one section of MLflow's page; any other quantity of layers has one of its own."""
LONGEST_KEY = 250  # what MLflow's stores take
LONGEST_QUANTITY = 80
# Places that are no modules, as those of a second training: an optimizer's parameter groups.
_GROUP = re.compile(r"(?:optimizer|group)_\d+(?:\.group_\d+)?")
# A dot separates a quantity from its place; a leading number was the order of the main charts in older runs.
_UNFIT_IN_QUANTITY = re.compile(r"[^\w\-]|^\d+_")
_UNFIT_IN_PLACE = re.compile(r"[^\w.\-]")
_UNFIT_FOR_MLFLOW = re.compile(r"[^\w.\- /:]")


def prefix_of(number: int) -> str:
    """Return how keys of the n-th recording that writes into a run at once begin: `stability`, `stability_2`."""
    return PREFIX if number <= 1 else f"{PREFIX}_{number}"


def is_group(place: str) -> bool:
    """Return whether a place is one of a few of the whole model, and not one of many layers."""
    return place != "" and (is_whole_model(place) or _GROUP.fullmatch(place) is not None)


def metric_key(signal: Signal, prefix: str = PREFIX) -> str:
    name, place = signal.quantity, signal.place
    quantity = _fitting(name, LONGEST_QUANTITY, _UNFIT_IN_QUANTITY)
    if not place:
        return "/".join(filter(None, (prefix, topic_of(name), quantity)))
    if is_whole_model(place):
        return f"{prefix}/{_fitting(place, LONGEST_KEY - len(prefix) - len(quantity) - 2)}/{quantity}"
    topic = topic_of(name)
    if is_group(place):
        key = f"{prefix}/{topic or 'optimizer'}/{quantity}."
    elif topic in TOPICS_OF_FEW_PLACES:
        key = f"{prefix}/{topic}/{quantity}."
    else:
        key = f"{prefix}/{LAYERS}/{quantity}/"
    return key + _fitting(place, LONGEST_KEY - len(key))


def parse_key(key: str) -> tuple[str, Signal] | None:
    """Return the prefix and the signal of a metric key; None for keys of others."""
    parts = read_key(key)
    return None if parts is None else (parts[0], Signal(parts[1], parts[2]))


def _fitting(name: str, longest: int, unfit: re.Pattern[str] = _UNFIT_IN_PLACE) -> str:
    """Return a name for a key: unchanged if possible, else with a short hash."""
    fit = unfit.sub("_", name)
    if fit == name and len(fit) <= longest and fit.strip("."):
        return fit
    mark = _hash(name)
    room = longest - len(mark) - 2
    if len(fit) > room:
        fit = f"{fit[: room // 2]}-{fit[len(fit) - room // 2 + 1 :]}"
    return f"{fit}-{mark}"


def _hash(name: str) -> str:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()


def fitting_keys(names: Iterable[str]) -> dict[str, str]:
    names = list(dict.fromkeys(names))
    keys = {name: name for name in names if _fitting_for_mlflow(name) == name}
    used = set(keys.values())
    for name in names:
        if name in keys:
            continue
        key = _fitting_for_mlflow(name)
        if key in used:
            mark = _hash(name)
            key = f"{key[: LONGEST_KEY - len(mark) - 1]}-{mark}"
        keys[name] = key
        used.add(key)
    return {name: keys[name] for name in names}


def _fitting_for_mlflow(name: str) -> str:
    """Return a name without characters that MLflow refuses, and without parts that a path would resolve."""
    parts = [part for part in _UNFIT_FOR_MLFLOW.sub("_", name).split("/") if part not in ("", ".", "..")]
    key = "/".join(parts)[:LONGEST_KEY].removesuffix("/..").removesuffix("/.").rstrip("/")
    if key.startswith(".."):  # MLflow takes any such key for a path out of its folder
        key = f"_{key[1:]}"
    return posixpath.normpath(key) if key.strip() else "_"
