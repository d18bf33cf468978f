"""Whether delivery keeps up, and what it costs the script's own `mlflow.log_metric` beside it.

    python tests/benchmarks/delivery.py [--seconds 60] [--signals 200] [--rate 50] [--store sqlite|rest|both]

A recording of many signals is journalled at a steady rate while a courier delivers it and the script logs a metric of
its own ten times a second. Printed: how much waits undelivered, second by second in quarters of the time; how long
the last of it took after the end; and the script's own calls without and with the courier, in turns.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path

import mlflow
import orjson
import psutil

import mlflow_stability
from mlflow_stability.journal.layout import STATUS, new_session_folder
from mlflow_stability.journal.writer import JournalWriter
from mlflow_stability.session.process.courier_link import CourierLink, DeliveryWait
from mlflow_stability.vocabulary import Closing, Opening, Signal, StepReading


@contextmanager
def rest_server(folder: Path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).read()
            break
        except OSError:
            time.sleep(0.2)
    try:
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


class OwnMetrics(threading.Thread):
    """The script's own metrics, ten a second, each call timed."""

    def __init__(self, uri: str, run_id: str) -> None:
        super().__init__(daemon=True)
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        self.run_id = run_id
        self.took: list[tuple[float, float]] = []
        self.stop = threading.Event()

    def run(self) -> None:
        step = 0
        while not self.stop.wait(0.1):
            began = time.perf_counter()
            self.client.log_metric(self.run_id, "own", step, step=step)
            self.took.append((time.time(), time.perf_counter() - began))
            step += 1


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) >= 2 else math.nan


def deliver(uri: str, options: argparse.Namespace) -> None:
    client = mlflow.MlflowClient(tracking_uri=uri)
    run_id = client.create_run("0").info.run_id
    own = OwnMetrics(uri, run_id)
    own.start()
    time.sleep(options.seconds / 3)
    alone = [took for _, took in own.took]

    folder = new_session_folder(Path(tempfile.mkdtemp(prefix="delivery-")) / ".mlflow-stability")
    process = psutil.Process()
    opening = Opening(
        uuid.uuid4().hex, process.pid, process.create_time(), socket.gethostname(), time.time(), uri, "/", run_id
    )
    journal = JournalWriter(folder / "000-benchmark", opening)
    link = CourierLink(folder, uri, lambda *words, **how: None)
    link.start()
    signals = tuple(Signal(f"signal_{number:03d}") for number in range(options.signals))
    waiting: list[int] = []
    began = time.monotonic()
    from_when = time.time()
    steps = int(options.seconds * options.rate)
    writing = 0.0
    for step in range(1, steps + 1):
        time.sleep(max(0.0, began + step / options.rate - time.monotonic()))
        values = tuple(math.sin(step / 10 + number) for number in range(options.signals))
        before = time.thread_time()
        journal.append(StepReading(step, signals, values, 0, time.time()))
        writing += time.thread_time() - before
        if step % options.rate == 0:
            page = folder / STATUS
            waiting.append(orjson.loads(page.read_bytes()).get("waiting_records", -1) if page.exists() else -1)
    beside = [took for when, took in own.took if when > from_when]
    own.stop.set()
    own.join()
    journal.append(Closing("finished", run_was_active=False))
    link.release()
    ended = time.monotonic()
    done = link.wait(DeliveryWait(120), lambda left: None)
    print(f"  {steps} steps of {options.signals} signals in {options.seconds:.0f} s")
    print(f"  journal: {writing / steps * 1e6:.0f} us CPU a step, in the training")
    quarters = [waiting[number * len(waiting) // 4 : (number + 1) * len(waiting) // 4] for number in range(4)]
    print(f"  waiting, MB, median of each quarter: {[round(statistics.median(q) / 1e6, 2) for q in quarters if q]}")
    print(f"  last of it arrived {time.monotonic() - ended:.1f} s after the end: {'all' if done else 'NOT ALL'}")
    points = client.get_metric_history(run_id, "stability/other/signal_000")
    print(f"  points of each signal in the metric tables: {len(points)}")
    frame = mlflow_stability.load_run(run_id, tracking_uri=uri)
    print(f"  rows in the full record: {len(frame)}, values: {int(frame.filter(like='signal_').count().sum())}")
    print(f"  the script's own log_metric: p95 {p95(alone) * 1000:.0f} ms alone, {p95(beside) * 1000:.0f} ms beside")
    medians = statistics.median(beside) / statistics.median(alone)
    print(f"  ratio of p95: {p95(beside) / p95(alone):.2f}; of medians: {medians:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--signals", type=int, default=200)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--store", choices=["sqlite", "rest", "both"], default="both")
    options = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    folder = Path(tempfile.mkdtemp(prefix="stores-"))
    os.chdir(folder)
    if options.store in ("sqlite", "both"):
        print("SQLite")
        deliver(f"sqlite:///{folder / 'mlflow.db'}", options)
    if options.store in ("rest", "both"):
        print("REST")
        with rest_server(folder) as url:
            deliver(url, options)


if __name__ == "__main__":
    main()
