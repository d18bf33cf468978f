"""Records the processes that a script starts by `multiprocessing`, as `torch.multiprocessing.spawn` does.

In: the settings of `autolog()`. Out: every process that is spawned from here calls it when it loads torch. Guarantees:
the script's own arguments of the process are untouched; where the settings cannot be sent, nothing is.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from multiprocessing import spawn
from typing import Any

_KEY = "mlflow_stability"


class _Begin:
    """Is unpickled in the new process before anything else, and begins there."""

    def __init__(self, begin: Callable[[Mapping[str, Any]], None], settings: Mapping[str, Any]) -> None:
        self._begin, self._settings = begin, settings

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], None], tuple[Mapping[str, Any]]]:
        return self._begin, (self._settings,)


def record_spawned(begin: Callable[[Mapping[str, Any]], None], settings: Mapping[str, Any]) -> None:
    """Have every process that is spawned from now on call `begin`, a function of a module, with the settings."""
    try:
        pickle.dumps((begin, settings))
    except Exception:  # whatever a setting raises: then those processes are as they were
        return
    prepared = spawn.get_preparation_data

    def with_ours(name: str) -> dict[str, Any]:
        return {**prepared(name), _KEY: _Begin(begin, settings)}

    spawn.get_preparation_data = with_ours
