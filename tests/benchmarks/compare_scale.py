"""How long a comparison of 1,000 runs of 2,000 points each takes, on SQLite and over REST, and how much memory.

Measured in processes of their own, in turns: a plain loop that fetches every metric of every run with MLflow's client
and does nothing with it, and `compare()`; then `compare()` once more, with the finished runs remembered. Memory is the
sum over the process and its children. Promised are 1.2 times the plain loop and 1 GB.

    python tests/benchmarks/compare_scale.py                # 1,000 runs; an hour
    python tests/benchmarks/compare_scale.py --runs 100
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import psutil

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from diagnosis.histories import falling  # noqa: E402
from servers.mlflow_server import mlflow_server  # noqa: E402

POINTS = 2_000
TURNS = 2
PLAIN = """
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=URI)
token, ids = None, []
while True:
    page = client.search_runs(["0"], max_results=500, page_token=token)
    ids += [run.info.run_id for run in page]
    token = page.token
    if not token:
        break
for run_id in ids:
    for key in client.get_run(run_id).data.metrics:
        assert len(client.get_metric_history(run_id, key)) == POINTS
print(f"{len(ids)} runs fetched")
"""
OURS = """
import mlflow_stability
found = mlflow_stability.compare(experiment="Default", tracking_uri=URI)
assert not found.unread, found.unread[0].error
print(found.summary)
"""


def fill(database: Path, runs: int) -> None:
    """Write runs straight into MLflow's tables, which takes seconds where its client takes an hour."""
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments()
    dice = np.random.default_rng(0)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        for number in range(runs):
            run_id, rate = uuid.uuid4().hex, float(10 ** dice.uniform(-4, -1))
            losses = falling(POINTS, seed=number)
            if dice.random() < 0.2:
                losses *= np.exp(np.maximum(0, np.arange(POINTS) - 1000) / 200)
            columns = (
                "run_uuid, name, user_id, status, start_time, end_time, lifecycle_stage, artifact_uri, experiment_id"
            )
            facts = (run_id, f"run-{number}", "ada", "FINISHED", 1, 2, "active", f"file:///tmp/{run_id}", 0)
            connection.execute(f"INSERT INTO runs ({columns}) VALUES ({', '.join('?' * 9)})", facts)
            rows = [("train_loss", float(loss), 1000 * step, step, 0, run_id) for step, loss in enumerate(losses)]
            for table, some in (("metrics", rows), ("latest_metrics", rows[-1:])):
                statement = f"INSERT INTO {table} (key, value, timestamp, step, is_nan, run_uuid) VALUES (?,?,?,?,?,?)"
                connection.executemany(statement, some)
            connection.execute("INSERT INTO params (key, value, run_uuid) VALUES (?,?,?)", ("lr", str(rate), run_id))


def measured(code: str, uri: str, cache: Path) -> tuple[float, float, str]:
    """Seconds, peak megabytes over all processes, and what it printed."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(Path(__file__).parents[2])}
    program = f"URI, POINTS = {uri!r}, {POINTS}\n{code}"
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    peak = [0.0]
    watcher = threading.Thread(target=watch, args=(process.pid, peak), daemon=True)
    watcher.start()
    said, _ = process.communicate()
    seconds = time.monotonic() - begin
    watcher.join()
    assert process.returncode == 0
    return seconds, peak[0], said.strip().splitlines()[-1]


def watch(pid: int, peak: list[float]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            known = [process, *process.children(recursive=True)]
            total = 0
            for each in known:
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += each.memory_info().rss
            peak[0] = max(peak[0], total / 1e6)
            time.sleep(0.2)


def report(where: str, uri: str, folder: Path) -> dict[str, object]:
    """The plain loop and ours in turns, so that what else the machine does meets both; then what is remembered."""
    times: dict[str, list[float]] = {"plain loop": [], "compare": [], "again": []}
    memory = 0.0
    for turn in range(TURNS):
        cache = folder / f"cache-{where}-{turn}"
        for what, code in (("plain loop", PLAIN), ("compare", OURS)):
            seconds, megabytes, said = measured(code, uri, cache)
            times[what].append(seconds)
            memory = max(memory, megabytes if what == "compare" else 0.0)
            print(f"{where:6} {what:10} {seconds:7.1f} s  {megabytes:6.0f} MB  {said}", flush=True)
    seconds, megabytes, said = measured(OURS, uri, folder / f"cache-{where}-0")
    times["again"].append(seconds)
    print(f"{where:6} {'again':10} {seconds:7.1f} s  {megabytes:6.0f} MB  {said}", flush=True)
    ratio = sum(times["compare"]) / sum(times["plain loop"])
    each = ", ".join(f"{ours / plain:.2f}" for ours, plain in zip(times["compare"], times["plain loop"], strict=True))
    print(f"{where:6} compare takes {ratio:.2f} x the plain loop ({each}), {memory:.0f} MB at most", flush=True)
    rounded = {what: [round(each, 1) for each in found] for what, found in times.items()}
    return {"store": where, "ratio": round(ratio, 3), "megabytes": round(memory), **rounded}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        fill(room / "mlflow.db", asked.runs)
        store = f"sqlite:///{room / 'mlflow.db'}"
        results = [report("sqlite", store, room)]
        with mlflow_server(room, store) as url:
            results.append(report("rest", url, room))
        print(json.dumps(results))
