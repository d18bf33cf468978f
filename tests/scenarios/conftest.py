"""What many scenarios begin with: a meter that watches torch, a store that takes their runs."""

from __future__ import annotations

from collections.abc import Iterator

import mlflow
import pytest
from mlflow import MlflowClient
from scenarios.watching import Watched, watching

import mlflow_stability


@pytest.fixture
def watched() -> Iterator[Watched]:
    with watching() as seen:
        yield seen


@pytest.fixture
def store(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowClient]:
    """An empty store that this process and those it starts log to."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    mlflow.set_tracking_uri(sqlite_uri)
    yield MlflowClient(sqlite_uri)
    mlflow_stability.autolog(disable=True)
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(None)
