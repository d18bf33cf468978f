"""How names that other people gave are written in MLflow.

In: the names of one run. Out: for each a key that every MLflow store takes. Promised: a name that is a key already
stays as it is; two names never become one key.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from hashlib import blake2b

from mlflow_stability.tracking.keys import LONGEST_KEY

_UNFIT = re.compile(r"[^\w.\- /:]")


def fitting_keys(names: Iterable[str]) -> dict[str, str]:
    """The key of each name."""
    wanted = list(dict.fromkeys(names))
    keys = {name: name for name in wanted if _fitting(name) == name}
    taken = set(keys.values())
    for name in wanted:
        if name in keys:
            continue
        key = _fitting(name)
        if key in taken:
            mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
            key = f"{key[: LONGEST_KEY - len(mark) - 1]}-{mark}"
        keys[name] = key
        taken.add(key)
    return {name: keys[name] for name in wanted}


def _fitting(name: str) -> str:
    """A name without what MLflow's keys may not hold, and without what would make a path of it that leads elsewhere."""
    parts = [part for part in _UNFIT.sub("_", name).split("/") if part not in ("", ".", "..")]
    key = "/".join(parts)[:LONGEST_KEY].rstrip("/")
    return posixpath.normpath(key) if key.strip() else "_"
