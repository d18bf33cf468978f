"""What stays on the screen of lines that a progress bar wrote over and over, with carriage returns and backspaces.

In: what was printed. Out: its lines. Guarantees: `last_states` has of each line what was written last, `all_states` all
that was ever written; time is linear in the text. A bar that is not at its end is told from one that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_KERAS_BAR = re.compile(r"(?:^|\s)(\d+)/(\d+) +(?:\[[=>.-]+\]|━+) ")
_BACK = re.compile(r"[\r\b]+")


def last_state(line: str) -> str:
    """A line as it stood in the end."""
    return next((state for state in reversed(_BACK.split(line)) if state.strip()), "")


def last_states(text: str) -> Iterator[str]:
    """Each line as it stood in the end."""
    for line in text.replace("\r\n", "\n").split("\n"):
        yield last_state(line)


def all_states(text: str) -> Iterator[str]:
    """Each line as often as it was written."""
    for line in text.replace("\r\n", "\n").split("\n"):
        yield from _BACK.split(line)


def is_unfinished_bar(line: str) -> bool:
    """Whether this is Keras's progress bar within an epoch: what it says are means over the epoch so far."""
    if "ETA" not in line and "/step" not in line:
        return False
    bar = _KERAS_BAR.search(line)
    return bar is not None and ("ETA" in line or bar[1] != bar[2])
