"""Downloads that run at the same time put MLflow's wish for progress bars back as it was."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from mlflow_stability.tracking.run_reader import _no_progress_bar

NAME = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"


@pytest.mark.parametrize("before", [None, "true"])
def test_downloads_in_several_threads_leave_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)

    def download(_: int) -> str | None:
        with _no_progress_bar():
            return os.environ.get(NAME)

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(download, range(4000))) == {"false"}
    assert os.environ.get(NAME) == before
