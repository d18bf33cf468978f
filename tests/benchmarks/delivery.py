"""The journal and its delivery: whether it keeps up, what a record costs, and a slow file system."""

from __future__ import annotations

import ctypes
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import mlflow
import orjson
import psutil
from benchmarks.table import Cell, Table, table_of
from servers.mlflow_server import mlflow_server

import mlflow_stability
from mlflow_stability.journal.journal import JournalWriter, read_journal
from mlflow_stability.journal.layout import STATUS, new_session_folder
from mlflow_stability.session.courier_link import CourierLink, DeliveryWait
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing, Opening


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


def delivery(
    seconds: float = 60.0, signals: int = 200, rate: int = 50, stores: tuple[str, ...] = ("sqlite", "rest")
) -> Iterator[Table]:
    """Journal many signals at a steady rate while a courier delivers them and the script logs ten metrics a second."""
    folder = Path.cwd()
    rows = []
    if "sqlite" in stores:
        rows.append({"store": "SQLite", **deliver(f"sqlite:///{folder / 'mlflow.db'}", seconds, signals, rate)})
    if "rest" in stores:
        with mlflow_server(folder, f"sqlite:///{folder / 'server.db'}") as url:
            rows.append({"store": "REST", **deliver(url, seconds, signals, rate)})
    measures = [name for name in rows[0] if name != "store"]
    yield table_of("", [{"": name, **{str(row["store"]): str(row[name]) for row in rows}} for name in measures])


def deliver(uri: str, seconds: float, signal_count: int, rate: int) -> dict[str, Cell]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    run_id = client.create_run("0").info.run_id
    own = OwnMetrics(uri, run_id)
    own.start()
    time.sleep(seconds / 3)
    alone = [took for _, took in own.took]

    folder = new_session_folder(Path(tempfile.mkdtemp(prefix="delivery-", dir=Path.cwd())) / ".mlflow-stability")
    process = psutil.Process()
    opening = Opening(
        uuid.uuid4().hex, process.pid, process.create_time(), socket.gethostname(), time.time(), uri, "/", run_id
    )
    journal = JournalWriter(folder / "000-benchmark", opening)
    link = CourierLink(folder, uri, lambda *words, **how: None)
    link.start()
    signals = tuple(Signal(f"signal_{number:03d}") for number in range(signal_count))
    waiting: list[int] = []
    began, from_when = time.monotonic(), time.time()
    steps = int(seconds * rate)
    writing = 0.0
    for step in range(1, steps + 1):
        time.sleep(max(0.0, began + step / rate - time.monotonic()))
        values = tuple(math.sin(step / 10 + number) for number in range(signal_count))
        before = time.thread_time()
        journal.append(StepReading(step, signals, values, 0, time.time()))
        writing += time.thread_time() - before
        if step % rate == 0:
            page = folder / STATUS
            waiting.append(orjson.loads(page.read_bytes()).get("waiting_records", -1) if page.exists() else -1)
    beside = [took for when, took in own.took if when > from_when]
    own.stop.set()
    own.join()
    journal.append(Closing("finished", run_was_active=False))
    link.release()
    ended = time.monotonic()
    done = link.wait(DeliveryWait(120), lambda left: None)
    last = time.monotonic() - ended
    quarters = [waiting[number * len(waiting) // 4 : (number + 1) * len(waiting) // 4] for number in range(4)]
    points = client.get_metric_history(run_id, "stability/other/signal_000")
    frame = mlflow_stability.load_run(run_id, tracking_uri=uri)
    return {
        "steps": f"{steps} of {signal_count} signals in {seconds:.0f} s",
        "journal, us CPU a step, in the training": round(writing / steps * 1e6),
        "records waiting, median of each quarter": ", ".join(f"{statistics.median(q):g}" for q in quarters if q),
        "last of it after the end, s": f"{last:.1f}{'' if done else ', NOT ALL'}",
        "points of each signal in the metric tables": len(points),
        "values in the full record": int(frame.filter(like="signal_").count().sum()),
        "own log_metric alone, p95 ms": round(1e3 * p95(alone)),
        "own log_metric beside, p95 ms": round(1e3 * p95(beside)),
        "ratio of medians": f"{statistics.median(beside) / statistics.median(alone):.2f}",
    }


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1] if len(values) >= 2 else math.nan


def journal(values: int = 1_000_000) -> Iterator[Table]:
    """Write values to a journal and read them back."""
    rows = []
    for signals in (200, 20, 1):
        folder = Path(tempfile.mkdtemp(prefix="journal-", dir=Path.cwd())) / "000-benchmark"
        writer = JournalWriter(folder, Opening("benchmark", 1, 1.0, "here", 1.0))
        names = tuple(Signal(f"signal_{number}") for number in range(signals))
        numbers = tuple(random.random() for _ in names)
        steps = values // signals
        began = time.perf_counter()
        for step in range(steps):
            writer.append(StepReading(step, names, numbers, 0, time.time()))
        wrote = time.perf_counter() - began
        writer.close()
        began = time.perf_counter()
        read_journal(folder / "journal")
        rows.append(
            {
                "signals a step": signals,
                "write, s": wrote,
                "us a step": wrote / steps * 1e6,
                "read, s": time.perf_counter() - began,
                "MB": writer.bytes_written / 1e6,
            }
        )
    yield table_of(f"{values:,} values", rows)


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static char below[65536];
static long all, first;
long slow_all(void) { return all; }
long slow_first(void) { return first; }
static void wait_for(void) {
  __atomic_add_fetch(&all, 1, __ATOMIC_RELAXED);
  if (syscall(SYS_gettid) == getpid()) first++;
  usleep(atoi(getenv("SLOW_MICROSECONDS")));
}
static int is_slow(const char *path) {
  const char *root = getenv("SLOW_DIRECTORY");
  return root && path && strncmp(path, root, strlen(root)) == 0;
}
#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
static int opened(int fd, const char *path) {
  if (fd >= 0 && fd < 65536) below[fd] = is_slow(path);
  return fd;
}
#define OPEN(name) int name(const char *path, int flags, ...) { \
  va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
  REAL(name); if (is_slow(path)) wait_for(); return opened(real(path, flags, mode), path); }
OPEN(open) OPEN(open64)
ssize_t write(int fd, const void *data, size_t count) {
  REAL(write); if (fd >= 0 && fd < 65536 && below[fd]) wait_for(); return real(fd, data, count); }
int rename(const char *from, const char *to) { REAL(rename); if (is_slow(to)) wait_for(); return real(from, to); }
int link(const char *from, const char *to) { REAL(link); if (is_slow(to)) wait_for(); return real(from, to); }
int unlink(const char *path) { REAL(unlink); if (is_slow(path)) wait_for(); return real(path); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); if (is_slow(path)) wait_for(); return real(path, mode); }
int stat(const char *path, struct stat *into) { REAL(stat); if (is_slow(path)) wait_for(); return real(path, into); }
int stat64(const char *path, struct stat64 *into) {
  REAL(stat64); if (is_slow(path)) wait_for(); return real(path, into); }
"""
"""A library loaded before libc, which makes every operation on files below a directory wait.

NFS answers most writes from its cache, so this is slower than NFS. Needs Linux and a C compiler.
"""
SLOW_WARM_UP_STEPS = 20
DEVICE_SECONDS = 0.01
TRAIN = "import sys; from benchmarks.delivery import train; train(int(sys.argv[1]))"


def slow_directory(steps: int = 300, milliseconds: tuple[float, ...] = (0.0, 1.0, 5.0, 20.0)) -> Iterator[Table]:
    """Train with a journal whose open, write, rename, link, unlink, mkdir and stat take these milliseconds."""
    source, library = Path("slow.c").resolve(), Path("slow.so").resolve()
    source.write_text(SHIM)
    subprocess.run(["cc", "-w", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    rows = []
    for number, latency in enumerate(milliseconds):
        place = Path(str(number), "journals").resolve()
        place.parent.mkdir()
        environment = {
            "LD_PRELOAD": str(library),
            "SLOW_DIRECTORY": str(place),
            "SLOW_MICROSECONDS": str(int(1000 * latency)),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-c", TRAIN, str(steps)]
        done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
        operations, own, median, mean, longest = map(float, done.stdout.split()[-5:])
        rows.append(
            {
                "ms an operation": latency,
                "operations a step": operations,
                "of the training thread": own,
                "step, median ms": 1e3 * median,
                "mean ms": 1e3 * mean,
                "longest ms": 1e3 * longest,
            }
        )
    yield table_of("", rows)


def train(steps: int) -> None:
    """Take steps that wait ten milliseconds for their device; print file operations and the time of the rest."""
    import torch

    options = mlflow_stability.Options(journal_dir=os.environ["SLOW_DIRECTORY"])
    mlflow_stability.autolog(offline=True, silent=True, options=options)
    libc = ctypes.CDLL(None)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    took, before = [], (0, 0)
    for step in range(steps + SLOW_WARM_UP_STEPS):
        if step == SLOW_WARM_UP_STEPS:
            before = libc.slow_all(), libc.slow_first()
        began = time.perf_counter()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - began)
        time.sleep(DEVICE_SECONDS)
    took = took[SLOW_WARM_UP_STEPS:]
    operations = (libc.slow_all() - before[0]) / steps, (libc.slow_first() - before[1]) / steps
    print(*operations, statistics.median(took), statistics.fmean(took), max(took))
