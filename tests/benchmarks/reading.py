"""How long a diagnosis takes to read a run of a million points from a server, beside the plain client.

python tests/benchmarks/reading.py [--points 1000000] [--rounds 3]

A run of ours: `mlflow-stability diagnose` as a process, less what `import mlflow` alone takes.
Anybody's run: the same, less the import, beside a loop of `MlflowClient.get_metric_history` over its metrics.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlflow_stability.tracking.artifacts import EVENTS_FOLDER, RECORD_FOLDER

sys.path.insert(0, str(Path(__file__).parents[1]))
from servers.mlflow_server import mlflow_server

SIGNALS = 20
FOREIGN = ("train_loss", "val_loss", "grad_norm", "lr")
CLIENT_LOOP = """
import sys, mlflow
client = mlflow.MlflowClient(tracking_uri=sys.argv[1])
run = client.get_run(sys.argv[2])
print(sum(len(client.get_metric_history(run.info.run_id, key)) for key in run.data.metrics))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    folder = Path(tempfile.mkdtemp(prefix="reading-"))
    with mlflow_server(folder, f"sqlite:///{folder / 'mlflow.db'}") as uri:
        ours, theirs = run_of_ours(uri, options.points), foreign_run(uri, folder / "mlflow.db", options.points)
        bare = [sys.executable, "-c", "import mlflow"]
        times: dict[str, list[float]] = {"import": [], "ours": [], "client": [], "theirs": []}
        for _ in range(options.rounds):  # in turns
            times["import"].append(seconds(bare))
            times["ours"].append(seconds(diagnose(ours, uri)))
            times["client"].append(seconds([sys.executable, "-c", CLIENT_LOOP, uri, theirs]))
            times["theirs"].append(seconds(diagnose(theirs, uri)))
    base = statistics.median(times["import"])
    print(f"import mlflow: {base:.1f} s")
    print(f"a run of ours, {options.points:,} points: {statistics.median(times['ours']) - base:.1f} s beyond that")
    pairs = zip(times["theirs"], times["client"], strict=True)
    ratio = statistics.median((mine - base) / (client - base) for mine, client in pairs)
    print(
        f"anybody's run, {options.points:,} points: diagnosed in {statistics.median(times['theirs']) - base:.1f} s, "
        f"fetched by the plain client in {statistics.median(times['client']) - base:.1f} s, median ratio {ratio:.2f}"
    )


def diagnose(run_id: str, uri: str) -> list[str]:
    return [sys.executable, "-m", "mlflow_stability", "diagnose", run_id, "--tracking-uri", uri]


def seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return time.perf_counter() - began


def curve(points: int) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, 0.03, points)
    return 1.5 + 3 * np.exp(-np.arange(points) / (points / 8)) + noise


def run_of_ours(uri: str, points: int) -> str:
    """A run as the courier leaves it: parts of the record, events, tags."""
    from mlflow import MlflowClient

    from mlflow_stability.tracking.artifacts import events_name, line_of
    from mlflow_stability.tracking.parquet_parts import PartBuffer, part_name
    from mlflow_stability.vocabulary import Closing, Opening, Signal, StepReading

    client = MlflowClient(tracking_uri=uri)
    run_id = str(client.create_run("0", tags={"stability.outcome": "finished"}).info.run_id)
    signals = (Signal("loss"), Signal("grad_norm"), *(Signal("grad_norm", f"blocks.{n}") for n in range(SIGNALS - 2)))
    steps = points // SIGNALS
    losses = curve(steps)
    with tempfile.TemporaryDirectory() as room:
        for number, part in enumerate(np.array_split(np.arange(steps), 10)):
            buffer = PartBuffer()
            for step in part.tolist():
                values = (float(losses[step]), *[1.0 + 0.01 * (step % 7)] * (SIGNALS - 1))
                buffer.add(StepReading(step + 1, signals, values, 0, float(step)), step + 1)
            file = Path(room, part_name(0, number))
            buffer.write(file, 0)
            client.log_artifact(run_id, str(file), RECORD_FOLDER)
        events = Path(room, events_name(0))
        said = (Opening("benchmark", 1, 1.0, "here", 1.0), Closing("finished", "", steps))
        events.write_text("".join(map(line_of, said)))
        client.log_artifact(run_id, str(events), EVENTS_FOLDER)
    client.set_terminated(run_id)
    return run_id


def foreign_run(uri: str, database: Path, points: int) -> str:
    """Written into the database at once: by the client it would take ten minutes."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(tracking_uri=uri)
    run_id = str(client.create_run("0").info.run_id)
    each = points // len(FOREIGN)
    values = curve(each)
    client.log_batch(run_id, [Metric(key, float(values[-1]), 10_000 + each - 1, each - 1) for key in FOREIGN])
    client.set_terminated(run_id)
    with sqlite3.connect(database, timeout=60) as connection:
        connection.executemany(
            "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, 0)",
            [(key, float(values[step]), 10_000 + step, run_id, step) for key in FOREIGN for step in range(each - 1)],
        )
    connection.close()
    return run_id


if __name__ == "__main__":
    main()
