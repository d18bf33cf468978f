from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from analysis.logs import falling, write_log
from analysis.stored_runs import store_run
from architecture.repository import ROOT
from servers.ports import free_port
from servers.troubled_server import TroubledServer

from mlflow_stability.analysis.card_workers import GONE, cards_from_dask
from mlflow_stability.analysis.compare import compare
from mlflow_stability.errors import RunNotFoundError, SettingsError

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

pytestmark = pytest.mark.slow


@contextmanager
def cluster(package: Path = ROOT) -> Iterator[str]:
    """A real one in a folder of its own: a scheduler and two worker processes."""
    port = free_port()
    script = Path("elsewhere", "cluster.py")
    script.parent.mkdir()
    script.write_text(START)
    process = subprocess.Popen(
        [sys.executable, script.name, str(port)],
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(package)},
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
    write_log(Path("logs/good.jsonl"), falling())
    sources = [*(store_run(sqlite_uri, falling(number)[:200]) for number in range(4)), "logs", "0" * 32]
    alone = compare(sources, tracking_uri=sqlite_uri, remember=False)
    nearby = f"sqlite:///{Path(sqlite_uri.removeprefix('sqlite:///')).relative_to(Path.cwd())}"
    with cluster() as address:
        together = compare(sources, tracking_uri=nearby, remember=False, dask=address)
    assert together.runs == alone.runs
    assert [card.source for card in together.unread] == ["0" * 32]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_cards_made_by_a_cluster_with_other_rules_are_neither_shown_nor_cached(
    sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other = tmp_path / "other" / "mlflow_stability"
    shutil.copytree(ROOT / "mlflow_stability", other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "diagnosis" / "verdict.py").open("a") as rule:
        rule.write("# another one\n")
    run_id = store_run(sqlite_uri, falling()[:200])
    with cluster(other.parent) as address, pytest.raises(RunNotFoundError, match="has other detection rules"):
        compare([run_id], tracking_uri=sqlite_uri, dask=address)
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_a_cluster_that_dies_loses_only_the_runs_it_had_not_read(
    troubled_server: TroubledServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow_stability.analysis.card_workers.AT_ONCE", 2)
    troubled_server.silent_at = "/runs/get"
    log = str(write_log(Path("good.jsonl"), falling()))
    mine = set(psutil.Process().children())
    with cluster() as address:
        values = {}
        for place, cards in cards_from_dask([log, "0" * 32, log], address, troubled_server.url, None):
            values[place] = [card.error for card in cards]
            if len(values) == 1:
                for child in set(psutil.Process().children()) - mine:
                    for process in (*child.children(recursive=True), child):
                        process.kill()
    assert values == {0: [""], 1: [GONE], 2: [GONE]}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_an_unreachable_cluster_raises_a_settings_error(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_stability.analysis.card_workers.DEADLINE", 1)
    run_id = store_run(sqlite_uri, falling())
    with pytest.raises(SettingsError, match="does not answer"):
        compare([run_id], tracking_uri=sqlite_uri, remember=False, dask=f"tcp://127.0.0.1:{free_port()}")
