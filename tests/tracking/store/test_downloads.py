"""What is reported of a download that fails: a lost connection is no missing file."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from servers.troubled_server import TroubledServer

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.read.run_reader import RunReader


@pytest.fixture
def reader(troubled_server: TroubledServer, monkeypatch: pytest.MonkeyPatch) -> RunReader:
    """A reader of a run with one file, by requests that are not made again."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    client = MlflowClient(tracking_uri=troubled_server.url)
    run_id = client.create_run("0").info.run_id
    client.log_text(run_id, "there", "stability/data/file.txt")
    return RunReader(run_id, client=client)


@pytest.mark.slow
def test_a_connection_that_is_lost_during_a_download_is_no_missing_file(
    reader: RunReader, troubled_server: TroubledServer
) -> None:
    troubled_server.lose_answers_to = "/stability/data/file.txt"
    with pytest.raises(TrackingError, match=r"Could not download stability/data/file\.txt"):
        reader.fetched("stability/data/file.txt", Path.read_text)
    assert not troubled_server.lose_answers_to, "the answer was lost"
    assert reader.fetched("stability/data/file.txt", Path.read_text) == "there"


@pytest.mark.slow
def test_a_file_that_is_not_there_is_not_found(reader: RunReader) -> None:
    with pytest.raises(RunNotFoundError, match=r"other\.txt"):
        reader.fetched("stability/data/other.txt", Path.read_text)
