"""Many runs: comparisons of 1,000 runs, many trainings at once, and searches among 100,000 runs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import psycopg
from benchmarks.table import Cell, Table, table_of
from diagnosis.histories import falling
from mlflow import MlflowClient
from servers.mlflow_server import mlflow_server
from servers.object_store import BUCKET, object_store
from servers.postgres import postgres
from stores.trainings import must_have_arrived_once, run_trainings, runs_of

from mlflow_stability.tracking.read.run_search import newest_runs, runs_called, runs_of_experiment

POINTS = 2_000
PATIENCE_SECONDS = 900.0
"""Starting many processes takes minutes where cores are few."""
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
comparison = mlflow_stability.compare(experiment="Default", tracking_uri=URI)
assert not comparison.unread, comparison.unread[0].error
print(comparison.summary)
"""


def compare_scale(runs: int = 1000, turns: int = 2) -> Iterator[Table]:
    """Compare runs of 2,000 points each, on SQLite and over REST, in turns with a plain loop over MLflow's client.

    The loop fetches every metric and does nothing with it; `again` is a comparison from the cache. Memory is the sum
    over the process and its children. Promised are 1.2 times the plain loop and 1 GB.
    """
    folder = Path.cwd()
    fill(folder / "mlflow.db", runs)
    store = f"sqlite:///{folder / 'mlflow.db'}"
    yield comparisons("SQLite", store, folder, turns)
    with mlflow_server(folder, store) as url:
        yield comparisons("REST", url, folder, turns)


def comparisons(store: str, uri: str, folder: Path, turns: int) -> Table:
    rows: list[dict[str, Cell]] = []
    seconds: dict[str, float] = {"plain loop": 0.0, "compare": 0.0}
    ways = [(turn, what, code) for turn in range(turns) for what, code in (("plain loop", PLAIN), ("compare", OURS))]
    for turn, what, code in (*ways, (0, "again", OURS)):
        took, megabytes, printed = measured(code, uri, folder / f"cache-{store}-{turn}")
        rows.append({"what": what, "turn": turn, "s": round(took, 1), "MB": round(megabytes), "printed": printed})
        seconds[what] = seconds.get(what, 0.0) + took
    ratio = seconds["compare"] / seconds["plain loop"]
    return table_of(store, rows, [f"compare takes {ratio:.2f} times the plain loop"])


def fill(database: Path, runs: int) -> None:
    """Write runs straight into MLflow's tables, which takes seconds where its client takes an hour."""
    MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments()
    rng = np.random.default_rng(0)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        for number in range(runs):
            run_id, rate = uuid.uuid4().hex, float(10 ** rng.uniform(-4, -1))
            losses = falling(POINTS, seed=number)
            if rng.random() < 0.2:
                losses *= np.exp(np.maximum(0, np.arange(POINTS) - 1000) / 200)
            columns = (
                "run_uuid, name, user_id, status, start_time, end_time, lifecycle_stage, artifact_uri, experiment_id"
            )
            values = (run_id, f"run-{number}", "ada", "FINISHED", 1, 2, "active", f"file:///tmp/{run_id}", 0)
            connection.execute(f"INSERT INTO runs ({columns}) VALUES ({', '.join('?' * 9)})", values)
            rows = [("train_loss", float(loss), 1000 * step, step, 0, run_id) for step, loss in enumerate(losses)]
            for table, some in (("metrics", rows), ("latest_metrics", rows[-1:])):
                statement = f"INSERT INTO {table} (key, value, timestamp, step, is_nan, run_uuid) VALUES (?,?,?,?,?,?)"
                connection.executemany(statement, some)
            connection.execute("INSERT INTO params (key, value, run_uuid) VALUES (?,?,?)", ("lr", str(rate), run_id))


def measured(code: str, uri: str, cache: Path) -> tuple[float, float, str]:
    """Run code in a process; return seconds, peak megabytes over all its processes, and its last line."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    program = f"URI, POINTS = {uri!r}, {POINTS}\n{code}"
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
    peak = [0.0]
    watcher = threading.Thread(target=watch, args=(process.pid, peak), daemon=True)
    watcher.start()
    printed, _ = process.communicate()
    seconds = time.monotonic() - begin
    watcher.join()
    assert process.returncode == 0
    return seconds, peak[0], printed.strip().splitlines()[-1]


def watch(pid: int, peak: list[float]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            total = 0
            for member in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += member.memory_info().rss
            peak[0] = max(peak[0], total / 1e6)
            time.sleep(0.2)


def tracking_scale(
    trainings: int = 16,
    steps: int = 300,
    seconds: float = 0.1,
    compared: int = 1000,
    searched: int = 100_000,
    turns: int = 2,
) -> Iterator[Table]:
    """Use one MLflow server on PostgreSQL and S3; 0 trainings, runs compared or runs searched leave that part out.

    Trainings start all at once, in turns bare and watched; `seconds` is what each of their steps sleeps, as one does
    that waits for its device. What arrived is counted.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if trainings:
        with site(Path.cwd() / "trainings") as (url, _):
            yield trainings_at_once(url, trainings, steps, seconds, turns)
    if compared:
        with site(Path.cwd() / "compared") as (url, database):
            fill(Path.cwd() / "filled.db", compared)
            _copy(Path.cwd() / "filled.db", database)
            yield comparisons("PostgreSQL", url, Path.cwd(), turns)
    if searched:
        with site(Path.cwd() / "searched") as (url, database):
            yield searches(url, _fill_heads(database, searched), turns)


@contextmanager
def site(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the address of a server, and that of the database behind it."""
    folder.mkdir()
    with object_store(folder) as buckets, postgres() as database:
        artifacts = f"s3://{BUCKET}/runs"
        with mlflow_server(folder, database, artifacts, environment=buckets.environment, workers=4) as url:
            yield url, database


def trainings_at_once(url: str, count: int, steps: int, seconds: float, turns: int) -> Table:
    times: dict[str, list[tuple[float, float, float]]] = {"bare": [], "watched": []}
    for turn in range(turns):
        for what, switch in (("bare", "1"), ("watched", "")):
            environment = {"MLFLOW_TRACKING_URI": url, "MLFLOW_STABILITY_DISABLE": switch}
            folder = Path.cwd() / f"{what}-{turn}"
            ended = run_trainings(folder, [environment] * count, steps, seconds, PATIENCE_SECONDS)
            assert not any(process.code for process in ended), ended[0].errors
            times[what] += [(process.cpu, process.median, process.longest) for process in ended]
    runs = runs_of(url)
    for run in runs:
        must_have_arrived_once(run, url, steps)
    rows = [
        {
            "trainings": what,
            "CPU, ms a step": statistics.median(cpu for cpu, _, _ in taken),
            "median step, ms": statistics.median(wall for _, wall, _ in taken),
            "longest step, ms": max(longest for _, _, longest in taken),
        }
        for what, taken in times.items()
    ]
    note = f"{len(runs)} of {turns * count} runs arrived, each with {steps} of {steps} steps, each once"
    return table_of(f"{count} trainings at once", rows, [note])


def _copy(filled: Path, database: str) -> None:
    """Copy the rows of a SQLite store into the tables that the server made in PostgreSQL."""
    with sqlite3.connect(filled) as source, psycopg.connect(database.replace("+psycopg", "")) as target:
        for table in ("runs", "params", "latest_metrics", "metrics"):
            rows = source.execute(f"SELECT * FROM {table}")
            columns = ", ".join(column[0] for column in rows.description)
            with target.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)


def searches(url: str, ids: list[str], turns: int) -> Table:
    """Find runs in the ways that commands have."""
    count = len(ids)
    rare = "params.lr = '0.007'"
    questions: dict[str, Callable[[], Sized]] = {
        "first page of MLflow's client": lambda: MlflowClient(tracking_uri=url).search_runs(["0"], max_results=50),
        "the 20 newest": lambda: newest_runs(20, url),
        "a name": lambda: runs_called(f"run-{count // 2}", url),
        "the beginning of an id": lambda: runs_called(ids[count // 2][:12], url),
        f"a filter that {count // 1000} runs meet": lambda: runs_of_experiment("Default", rare, url),
        "the newest 1,000, for a comparison": lambda: runs_of_experiment("Default", "", url, 1001),
    }
    rows = []
    for what, ask in questions.items():
        took, runs = [], 0
        for _ in range(turns):
            began = time.monotonic()
            runs = len(ask())
            took.append(time.monotonic() - began)
        rows.append({"what": what, "runs": runs, "s": statistics.median(took)})
    return table_of(f"Searches among {count:,} runs", rows)


def _fill_heads(database: str, count: int) -> list[str]:
    """Write runs with ten parameters, five tags and ten last values each; return their ids."""
    ids = [uuid.uuid4().hex for _ in range(count)]
    run = "run_uuid, name, user_id, status, start_time, end_time, lifecycle_stage, artifact_uri, experiment_id"
    with psycopg.connect(database.replace("+psycopg", "")) as target, target.cursor() as cursor:
        with cursor.copy(f"COPY runs ({run}) FROM STDIN") as copy:
            for number, run_id in enumerate(ids):
                values = (f"run-{number}", "ada", "FINISHED", number, number + 1, "active", f"s3://runs/{run_id}", 0)
                copy.write_row((run_id, *values))
        with cursor.copy("COPY params (key, value, run_uuid) FROM STDIN") as copy:
            for number, run_id in enumerate(ids):
                copy.write_row(("lr", f"{number % 1000 / 1000}", run_id))
                for other in range(9):
                    copy.write_row((f"setting_{other}", "1", run_id))
        with cursor.copy("COPY tags (key, value, run_uuid) FROM STDIN") as copy:
            for number, run_id in enumerate(ids):
                copy.write_row(("mlflow.runName", f"run-{number}", run_id))
                for other in range(4):
                    copy.write_row((f"tag_{other}", "1", run_id))
        with cursor.copy("COPY latest_metrics (key, value, timestamp, step, is_nan, run_uuid) FROM STDIN") as copy:
            for run_id in ids:
                for other in range(10):
                    copy.write_row((f"metric_{other}", 0.5, 1, 100, "f", run_id))
        cursor.execute("ANALYZE")
    return ids
