"""What one MLflow server on PostgreSQL and S3 does to many trainings, to a comparison, and to a search.

    python tests/benchmarks/tracking_scale.py trainings --count 16   # step times, bare and watched, all at once
    python tests/benchmarks/tracking_scale.py compare --count 1000   # beside a plain loop over MLflow's client
    python tests/benchmarks/tracking_scale.py search --count 100000  # pages of runs, a filter, a name, the newest

`trainings` starts this many at once, in turns bare and watched, and compares the CPU time and the wall time of their
steps; each step sleeps, as one does that waits for its device. Then it counts what has arrived.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from benchmarks.compare_scale import OURS, PLAIN, fill, measured  # noqa: E402
from mlflow import MlflowClient  # noqa: E402
from servers.mlflow_server import mlflow_server  # noqa: E402
from servers.object_store import BUCKET, object_store  # noqa: E402
from servers.postgres import postgres  # noqa: E402
from stores.trainings import must_have_arrived_once, run_trainings, runs_of  # noqa: E402

from mlflow_stability.tracking.read.run_search import (  # noqa: E402
    newest_runs,
    runs_called,
    runs_of_experiment,
)

PATIENCE = 900.0
"""Seconds; starting many processes takes minutes where cores are few."""


@contextmanager
def site(folder: Path) -> Iterator[tuple[str, str]]:
    """The address of a server, and that of the database behind it."""
    with object_store(folder) as buckets, postgres() as database:
        artifacts = f"s3://{BUCKET}/runs"
        with mlflow_server(folder, database, artifacts, environment=buckets.environment, workers=4) as url:
            yield url, database


def trainings(folder: Path, count: int, steps: int, seconds: float, turns: int) -> None:
    """Many at once: what a step costs bare and watched, and what of it arrived."""
    with site(folder) as (url, _):
        known: dict[str, list[tuple[float, float, float]]] = {"bare": [], "watched": []}
        for turn in range(turns):
            for what, switch in (("bare", "1"), ("watched", "")):
                environment = {"MLFLOW_TRACKING_URI": url, "MLFLOW_STABILITY_DISABLE": switch}
                began = time.monotonic()
                ended = run_trainings(folder / f"{what}-{turn}", [environment] * count, steps, seconds, PATIENCE)
                assert not any(each.code for each in ended), ended[0].errors
                known[what] += [(each.cpu, each.median, each.longest) for each in ended]
                print(f"  {what}: {count} trainings, delivered after {time.monotonic() - began:.0f} s", flush=True)
        runs = runs_of(url)
        for run in runs:
            must_have_arrived_once(run, url, steps)
        print(f"  {len(runs)} of {turns * count} runs, each with {steps} of {steps} steps, each once")
    for what, taken in known.items():
        cpu, wall = (statistics.median(each[part] for each in taken) for part in (0, 1))
        longest = max(each[2] for each in taken)
        print(f"  {what}: CPU {cpu:.2f} ms a step, median step {wall:.2f} ms, longest step {longest:.0f} ms")


def compare(folder: Path, count: int, turns: int) -> None:
    """A plain loop over MLflow's client, and `compare`, in turns; memory over all processes."""
    with site(folder) as (url, database):
        fill(folder / "filled.db", count)
        _copy(folder / "filled.db", database)
        for turn in range(turns):
            for what, code in (("plain loop", PLAIN), ("compare", OURS)):
                seconds, megabytes, said = measured(code, url, folder / f"cache-{turn}")
                print(f"  {what:10} {seconds:7.1f} s  {megabytes:6.0f} MB  {said}", flush=True)
        seconds, megabytes, said = measured(OURS, url, folder / "cache-0")
        print(f"  {'again':10} {seconds:7.1f} s  {megabytes:6.0f} MB  {said}")


def _copy(filled: Path, database: str) -> None:
    """The rows of a SQLite store into the tables that the server has made in PostgreSQL."""
    import sqlite3

    with sqlite3.connect(filled) as source, psycopg.connect(database.replace("+psycopg", "")) as target:
        for table in ("runs", "params", "latest_metrics", "metrics"):
            found = source.execute(f"SELECT * FROM {table}")
            columns = ", ".join(each[0] for each in found.description)
            with target.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for row in found:
                    copy.write_row(row)


def search(folder: Path, count: int, turns: int) -> None:
    """Runs that are written straight into the tables, found again in the ways that commands have."""
    with site(folder) as (url, database):
        ids = _fill_heads(database, count)
        rare = "params.lr = '0.007'"
        questions: dict[str, Callable[[], object]] = {
            "first page of MLflow's client": lambda: MlflowClient(tracking_uri=url).search_runs(["0"], max_results=50),
            "the 20 newest": lambda: newest_runs(20, url),
            "a name": lambda: runs_called(f"run-{count // 2}", url),
            "the beginning of an id": lambda: runs_called(ids[count // 2][:12], url),
            f"a filter that {count // 1000} runs meet": lambda: runs_of_experiment("Default", rare, url),
            "the newest 1,000, for a comparison": lambda: runs_of_experiment("Default", "", url, 1001),
        }
        for what, ask in questions.items():
            took = []
            for _ in range(turns):
                began = time.monotonic()
                found = ask()
                took.append(time.monotonic() - began)
            print(f"  {what}: {len(found)} runs in {statistics.median(took):.2f} s", flush=True)  # type: ignore[arg-type]


def _fill_heads(database: str, count: int) -> list[str]:
    """Runs with ten parameters, five tags and ten last values each."""
    ids = [uuid.uuid4().hex for _ in range(count)]
    run = "run_uuid, name, user_id, status, start_time, end_time, lifecycle_stage, artifact_uri, experiment_id"
    with psycopg.connect(database.replace("+psycopg", "")) as target, target.cursor() as cursor:
        with cursor.copy(f"COPY runs ({run}) FROM STDIN") as copy:
            for number, each in enumerate(ids):
                facts = (f"run-{number}", "ada", "FINISHED", number, number + 1, "active", f"s3://runs/{each}", 0)
                copy.write_row((each, *facts))
        with cursor.copy("COPY params (key, value, run_uuid) FROM STDIN") as copy:
            for number, each in enumerate(ids):
                copy.write_row(("lr", f"{number % 1000 / 1000}", each))
                for other in range(9):
                    copy.write_row((f"setting_{other}", "1", each))
        with cursor.copy("COPY tags (key, value, run_uuid) FROM STDIN") as copy:
            for number, each in enumerate(ids):
                copy.write_row(("mlflow.runName", f"run-{number}", each))
                for other in range(4):
                    copy.write_row((f"tag_{other}", "1", each))
        columns = "key, value, timestamp, step, is_nan, run_uuid"
        with cursor.copy(f"COPY latest_metrics ({columns}) FROM STDIN") as copy:
            for each in ids:
                for other in range(10):
                    copy.write_row((f"metric_{other}", 0.5, 1, 100, "f", each))
        cursor.execute("ANALYZE")
    return ids


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["trainings", "compare", "search"])
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1, help="what each step of a training sleeps")
    asked = parser.parse_args()
    print(json.dumps({"what": asked.what, "count": asked.count}))
    with tempfile.TemporaryDirectory() as name:
        if asked.what == "trainings":
            trainings(Path(name), asked.count, asked.steps, asked.seconds, asked.turns)
        else:
            {"compare": compare, "search": search}[asked.what](Path(name), asked.count, asked.turns)
