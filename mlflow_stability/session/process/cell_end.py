"""Notices that a cell of a notebook has ended, while its kernel lives on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mlflow_stability.session.process.process_end import closing_of
from mlflow_stability.vocabulary.run import Closing


class CellEnd:
    """Calls back at the end of each cell with how it ended; does nothing outside of IPython."""

    def __init__(self, on_end: Callable[[Closing], None]) -> None:
        self._on_end = on_end
        self._events: Any = None

    def install(self) -> None:
        """Begin to listen."""
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell = None if get_shell is None else get_shell()
        if shell is not None and self._events is None:
            self._events = shell.events
            self._events.register("post_run_cell", self._ended)

    def remove(self) -> None:
        """Leave IPython as it was."""
        events, self._events = self._events, None
        if events is not None:
            events.unregister("post_run_cell", self._ended)

    def _ended(self, result: Any) -> None:
        error = result.error_in_exec or result.error_before_exec
        self._on_end(Closing("finished") if error is None else closing_of(error))
