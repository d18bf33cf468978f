"""Remembers which runs this process has recorded into, whatever session it was in.

In: each recording that ended, with its run and its last step. Out: the last step of a run, and the recordings that a
further one of the same run continues. Guarantees: `autolog(disable=True)` and `autolog()` again lose nothing of it; a
forked child knows of none, for its parent goes on.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field

MOST_NAMED = 20
"""So many recordings of a run are named to a further one; of a script that changes between two runs at every epoch, the
oldest have long arrived."""


@dataclass(slots=True)
class _Recorded:
    last_step: int = 0
    recordings: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NAMED))


class EarlierRecordings:
    """The recordings of this process that have ended, by run."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._runs: dict[str, _Recorded] = {}

    def ended(self, run_id: str, recording: str, last_step: int) -> None:
        """Remember a recording; told of one again, with its run known by now, it is still one."""
        known = self._of_this_process().setdefault(run_id, _Recorded())
        known.last_step = max(known.last_step, last_step)
        if recording not in known.recordings:
            known.recordings.append(recording)

    def last_step(self, run_id: str) -> int:
        """The last step of a run that was recorded here; 0 where none was."""
        known = self._of_this_process().get(run_id)
        return 0 if known is None else known.last_step

    def of_run(self, run_id: str) -> list[str]:
        """The newest recordings of a run, oldest first."""
        known = self._of_this_process().get(run_id)
        return [] if known is None else list(known.recordings)

    def _of_this_process(self) -> dict[str, _Recorded]:
        if self._pid != os.getpid():
            self._pid, self._runs = os.getpid(), {}
        return self._runs


EARLIER = EarlierRecordings()
"""Those of this process."""
