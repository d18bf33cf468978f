"""Downloads that run at the same time put MLflow's wish for progress bars back as it was."""

from __future__ import annotations

import os

import pytest

from mlflow_stability.tracking.client import no_progress_bar

NAME = "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"


@pytest.mark.parametrize("before", [None, "true"])
def test_a_download_that_ends_before_one_that_began_later_leaves_it_without_a_bar(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    first, second = no_progress_bar(), no_progress_bar()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ.get(NAME) == "false"
    second.__exit__(None, None, None)
    assert os.environ.get(NAME) == before
