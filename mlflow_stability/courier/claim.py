"""Makes sure that a session has one courier.

In: a session's folder. Out: whether it is ours to deliver. Promised: of couriers that live, one holds the claim; that
of a courier which was killed is taken over. Where two take over at the same moment, both look again until one has it;
even a short overlap does no harm, for everything that is delivered can be delivered twice.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from mlflow_stability.journal.layout import COURIER, STATUS
from mlflow_stability.journal.process_identity import Life, identity_from, identity_in_link, life_of, own_identity

_SILENT_SECONDS = 60.0
_SETTLE_SECONDS = 0.2


class Claim:
    """The right to deliver one session."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / COURIER
        me = own_identity()
        if me.boot:  # tells the machine too; a claim must be so short that it fits on a full disk
            me = replace(me, host="", machine="")
        self._mine = {**me.said(), "claim": time.time_ns()}

    def take(self) -> bool:
        """Claim the session; False if a living courier has it."""
        if self._create():
            return True
        if holder_lives(self._file.parent):
            return False
        self._file.unlink(missing_ok=True)
        if not self._create():
            return False
        time.sleep(_SETTLE_SECONDS)
        return self.holds()

    def holds(self) -> bool:
        """Whether it is still ours."""
        return identity_in_link(self._file) == self._mine

    def release(self) -> None:
        """Leave the session to the next courier."""
        if self.holds():
            self._file.unlink(missing_ok=True)

    def _create(self) -> bool:
        try:
            self._file.symlink_to(json.dumps(self._mine, separators=(",", ":")))
        except FileExistsError:
            return False
        return True


def holder_lives(folder: Path) -> bool:
    """Whether a courier is at work on this session."""
    file = folder / COURIER
    holder = identity_from(identity_in_link(file))
    if holder is None:
        return False
    life = life_of(holder)
    if life is Life.UNKNOWN:
        return abs(time.time() - max(_changed(file), _changed(folder / STATUS))) < _SILENT_SECONDS
    return life is Life.LIVES


def _changed(file: Path) -> float:
    try:
        return file.lstat().st_mtime
    except OSError:
        return 0.0
