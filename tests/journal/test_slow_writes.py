"""Slow writes of a journal are reported where they hold up the training, and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from benchmarks.delivery import SHIM

from mlflow_stability.journal.journal import MIN_WRITES, SLOW_SECONDS, SLOW_SHARE, WriteTimes

SLOWER_THAN_A_BUSY_MACHINE = 1.0
"""Seconds: writes that are not much slower than a pause of the thread are taken for one that had to wait."""
TRAIN = """
import time, torch, mlflow_stability
mlflow_stability.autolog(offline=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(50):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.005)
"""


def test_slow_writes_are_reported_once_with_their_time_and_share() -> None:
    before = time.perf_counter()
    times = WriteTimes()
    began = time.perf_counter()
    for _ in range(MIN_WRITES):
        time.sleep(0.03)
        times.add_slow(SLOWER_THAN_A_BUSY_MACHINE)
    ended = time.perf_counter()
    result = times.check(MIN_WRITES)
    after = time.perf_counter()
    assert result is not None
    assert result.seconds == pytest.approx(SLOWER_THAN_A_BUSY_MACHINE)
    together = SLOWER_THAN_A_BUSY_MACHINE * MIN_WRITES
    assert together / (after - before) <= result.share <= together / (ended - began)
    for _ in range(MIN_WRITES):
        times.add_slow(SLOWER_THAN_A_BUSY_MACHINE)
    assert times.check(2 * MIN_WRITES) is None


def test_a_few_slow_writes_among_many_are_not_reported() -> None:
    times = WriteTimes()
    for _ in range(MIN_WRITES):
        times.add_slow(0.5)
    assert times.check(2 * MIN_WRITES + 1) is None
    assert times.check(3 * MIN_WRITES) is None  # nor do they count in the writes after them


def test_slow_writes_in_long_steps_are_not_reported() -> None:
    times = WriteTimes()
    for _ in range(MIN_WRITES):
        times.add_slow(SLOW_SECONDS)
    time.sleep(1.1 * MIN_WRITES * SLOW_SECONDS / SLOW_SHARE)
    assert times.check(MIN_WRITES) is None


def test_a_thread_that_holds_the_gil_is_not_mistaken_for_a_slow_disk() -> None:
    times, over = WriteTimes(), threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(1000))

    busy = threading.Thread(target=work)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.05)
    busy.start()
    try:
        for _ in range(MIN_WRITES):
            times.add_slow(0.05)
        assert times.check(MIN_WRITES) is None
    finally:
        over.set()
        sys.setswitchinterval(interval)
        busy.join()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_a_training_whose_journal_is_on_a_slow_file_system_says_so_once(tmp_path: Path) -> None:
    source, library, journals = tmp_path / "slow.c", tmp_path / "slow.so", tmp_path / "journals"
    source.write_text(SHIM)
    subprocess.run(["cc", "-w", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "SLOW_DIRECTORY": str(journals),
        "SLOW_MICROSECONDS": "100000",
        "MLFLOW_STABILITY_JOURNAL_DIR": str(journals),
    }
    done = subprocess.run(
        [sys.executable, "-c", TRAIN], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if "slow file system" in line]
    assert len(lines) == 1, done.stderr
    assert "ms for its journal line at step" in lines[0]
    assert str(journals) in lines[0]
    assert "(threshold 5 %)" in lines[0]
    assert "MLFLOW_STABILITY_JOURNAL_DIR" in lines[0]
