"""What the three ways from a journal into a run have in common.

Each has its own eye on the journal and its own place in it, so that one that is stuck (say, the artifact store is
away) neither holds the others up nor fills the memory: it just reads on later.
"""

from __future__ import annotations

from typing import Protocol


class Stream(Protocol):
    """One kind of thing on its way into the run."""

    done: bool
    """Everything has arrived."""

    @property
    def reached(self) -> int:
        """The place in the journal up to which everything has arrived that should have by now."""

    def advance(self, over: bool) -> bool:
        """Do a bite of work; True if there is more to do at once. `over`: nothing more will be recorded, send the rest.

        Raises `TrackingError` when the store did not take it; calling again tries the same again.
        """
