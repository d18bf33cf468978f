"""A test that leaves its process changed fails, says what it left, and is cleared up after.

The fixture comes before all others of a test and ends after them. What lasts longer, such as a server for a whole
session, is there before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plugins.interpreter_state import INTERPRETER, wait_for_threads
from plugins.library_state import LIBRARIES, seed_all, undo_what_libraries_do_once
from plugins.process_state import changes, put_back, snapshot

PARTS = (*LIBRARIES, *INTERPRETER)


@pytest.fixture(autouse=True)
def gives_back() -> Iterator[None]:
    seed_all()
    before = snapshot(PARTS)
    yield
    undo_what_libraries_do_once(before)
    wait_for_threads(before)
    left = changes(before, snapshot(PARTS))
    if left:
        put_back(before, left)
        pytest.fail("\n  ".join(["left changed:", *(text for _, text in left)]), pytrace=False)
