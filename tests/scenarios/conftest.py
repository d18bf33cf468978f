from __future__ import annotations

from collections.abc import Iterator

import pytest
from scenarios.watching import Watched, watching


@pytest.fixture
def watched() -> Iterator[Watched]:
    with watching() as seen:
        yield seen
