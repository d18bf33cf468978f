from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from analysis.logs import falling
from analysis.stored_runs import store_run
from architecture.repository import ROOT
from servers.mlflow_server import free_port

from mlflow_stability.analysis.compare import compare
from mlflow_stability.errors import SettingsError

pytest.importorskip("distributed")

START = """
import sys, time
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
                      scheduler_port=int(sys.argv[1])) as cluster:
        print("ready", flush=True)
        sys.stdin.read()
"""


@contextmanager
def cluster() -> Iterator[str]:
    """A real one: a scheduler and two worker processes."""
    port = free_port()
    script = Path("cluster.py")
    script.write_text(START)
    process = subprocess.Popen(
        [sys.executable, str(script), str(port)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield f"tcp://127.0.0.1:{port}"
    finally:
        process.communicate()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_cluster_gives_the_same_comparison_and_says_what_it_could_not_read(sqlite_uri: str) -> None:
    sources = [*(store_run(sqlite_uri, falling(number)[:200]) for number in range(4)), "0" * 32]
    alone = compare(sources, tracking_uri=sqlite_uri, remember=False)
    with cluster() as address:
        together = compare(sources, tracking_uri=sqlite_uri, remember=False, dask=address)
    assert together == alone
    assert len(together.unread) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_cluster_that_is_not_there_is_said_in_a_sentence(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_stability.analysis.dask_cluster.DEADLINE", 1)
    run_id = store_run(sqlite_uri, falling())
    with pytest.raises(SettingsError, match="does not answer"):
        compare([run_id], tracking_uri=sqlite_uri, remember=False, dask=f"tcp://127.0.0.1:{free_port()}")
