"""A training of a million steps with everything on, and two dozen recordings after it, while its surroundings fail.

The server goes away every other minute. The clock is set forward and back, and the journal's disk fills and is freed,
where this machine allows to mount.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mlflow
import pandas as pd
import psutil
from benchmarks.table import Table, table_of
from faults.clock import HOUR, set_clock
from servers.mlflow_server import mlflow_server
from servers.troubled_server import TroubledServer

import mlflow_stability

SCRIPT = Path(__file__).with_name("soak_training.py")
SAMPLED_EVERY = 2.0
"""Seconds."""
MIB = 2**20
Series = list[dict[str, float]]


@dataclass
class Soak:
    """What happens around the training, and what is measured of it from outside."""

    folder: Path
    steps: int
    training: subprocess.Popen[bytes]
    server: TroubledServer
    away: float
    samples: Series = field(default_factory=list)
    happened: list[tuple[float, str]] = field(default_factory=list)

    @property
    def journals(self) -> Path:
        return self.folder / "disk" / "journal"

    def watch(self) -> None:
        """Sample couriers and journals until the training and its delivery have ended."""
        plan = self.plan()
        began = time.monotonic()
        while self.training.poll() is None:
            if plan and self.step() >= plan[0][0]:
                _, what, act = plan.pop(0)
                act()
                self.happened.append((time.time(), what))
            self.server.mood = "down" if (time.monotonic() - began) % (2 * self.away) > self.away else "up"
            self.sample()
            time.sleep(SAMPLED_EVERY)
        self.server.mood = "up"
        (self.folder / "disk" / "filler").unlink(missing_ok=True)

    def plan(self) -> list[tuple[int, str, Callable[[], None]]]:
        if not can_mount():
            return []
        at = [self.steps * share // 100 for share in (20, 40, 60, 62)]
        return [
            (at[0], "clock +1 h", lambda: set_clock(self.training.pid, HOUR, self.folder)),
            (at[1], "clock back", lambda: set_clock(self.training.pid, 0, self.folder)),
            (at[2], "disk full", self.fill),
            (at[3], "disk freed", lambda: (self.folder / "disk" / "filler").unlink()),
        ]

    def fill(self) -> None:
        with (self.folder / "disk" / "filler").open("wb") as filler:
            try:
                while True:
                    filler.write(bytes(MIB))
                    filler.flush()
            except OSError:  # full: what was meant
                return

    def step(self) -> int:
        rows = measures(self.folder)
        return int(rows[-1]["at"]) if rows and rows[-1]["phase"] == "long" else self.steps * bool(rows)

    def sample(self) -> None:
        couriers = [process for process in psutil.process_iter(["cmdline"]) if self.is_courier(process)]
        totals = {"rss": 0, "handles": 0, "threads": 0}
        for courier in couriers:
            try:
                memory, handles, threads = courier.memory_info().rss, courier.num_fds(), courier.num_threads()
            except psutil.NoSuchProcess:
                continue
            totals = {
                "rss": totals["rss"] + memory,
                "handles": totals["handles"] + handles,
                "threads": totals["threads"] + threads,
            }
        size = sum(size_of(path) for path in self.journals.rglob("*"))
        self.samples.append({"time": time.time(), "couriers": len(couriers), "journal": size, **totals})

    def is_courier(self, process: psutil.Process) -> bool:
        command = process.info["cmdline"] or []
        return "mlflow_stability.courier" in command and any(str(self.folder) in word for word in command)


def soak(
    steps: int = 1_000_000,
    recordings: int = 24,
    steps_of_a_recording: int = 2000,
    away: float = 60.0,
    disk_mib: int = 1500,
    longest_delivery: float = 600.0,
    picture: Path | None = None,
) -> Iterator[Table]:
    """Train in a process of its own, and measure it and its courier from outside.

    `away`: seconds for which the server is away, and then there. `disk_mib`: size of the disk of the journals.
    `longest_delivery`: seconds to wait for it after the end. `picture`: a PNG of the curves.
    """
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=Path.cwd()))
    disk = folder / "disk"
    disk.mkdir()
    mounts = can_mount()
    if mounts:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "tmpfs", str(disk)], check=True)
    try:
        with mlflow_server(folder, f"sqlite:///{folder / 'server.db'}") as behind, TroubledServer(behind) as server:
            arguments = [str(number) for number in (steps, recordings, steps_of_a_recording)]
            began = time.monotonic()
            with (folder / "errors").open("wb") as errors:
                training = subprocess.Popen(
                    [*(["unshare", "-m"] if mounts else []), sys.executable, str(SCRIPT), *arguments],
                    cwd=folder,
                    env={
                        **os.environ,
                        "MLFLOW_TRACKING_URI": server.url,
                        "MLFLOW_STABILITY_JOURNAL_DIR": str(disk / "journal"),
                        "OMP_NUM_THREADS": "1",
                    },
                    stderr=errors,
                )
                watched = Soak(folder, steps, training, server, away)
                watched.watch()
            ended = time.monotonic()
            while list(watched.journals.glob("*-*/*/journal")) and time.monotonic() - ended < longest_delivery:
                watched.sample()
                time.sleep(SAMPLED_EVERY)
            delivered = time.monotonic() - ended
            rows = measures(folder)
            yield costs(rows)
            yield holdings(rows, watched.samples)
            notes = [
                f"exit code {training.returncode} after {ended - began:,.0f} s; delivered {delivered:.0f} s later",
                f"around it: {', '.join(what for _, what in watched.happened) or 'no right to mount'}",
                f"the server was away for {away:g} s of every {2 * away:g} s",
                "on stderr: " + ((folder / "errors").read_text(errors="replace").strip()[-500:] or "nothing"),
            ]
            yield table_of("Delivery", completeness(behind, steps, recordings, steps_of_a_recording), notes)
            if picture is not None:
                draw(rows, watched, picture)
    finally:
        if mounts:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def can_mount() -> bool:
    return not subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # delivered and removed meanwhile
        return 0


def measures(folder: Path) -> list[dict[str, float | str]]:
    file = folder / "measures.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def costs(rows: list[dict[str, float | str]]) -> Table:
    """Return the cost of a step in each tenth of the long training."""
    spent = pd.DataFrame([row for row in rows if row["phase"] == "long"])
    size = len(spent) // 10
    tenths = [spent.iloc[number * size : (number + 1) * size] for number in range(10)]
    return table_of(
        "A step in each tenth, ms",
        [
            {"": name, **{f"{number + 1}": 1e3 * float(tenth[key].median()) for number, tenth in enumerate(tenths)}}
            for name, key in (("CPU", "cpu"), ("wall", "wall"))
        ],
    )


def holdings(rows: list[dict[str, float | str]], samples: Series) -> Table:
    """Return what processes hold after the first tenth, at the end of the long training, and over the short ones."""
    long = [row for row in rows if row["phase"] == "long"]
    short = [row for row in rows if row["phase"] == "short"]
    times = [float(long[len(long) // 10]["time"]), float(long[-1]["time"]), float("inf")]
    within = [
        [sample for sample in samples if low < sample["time"] <= high]
        for low, high in zip([0.0, *times], times, strict=False)
    ]
    result = []
    for name, unit in (("rss", MIB), ("handles", 1), ("threads", 1)):
        at = [float(row[name]) / unit for row in (long[len(long) // 10], long[-1], *(short[:1] + short[-1:]))]
        result.append({"": f"training, {name}", **dict(zip(MOMENTS, map(round, at), strict=False))})
    for name, unit in (("rss", MIB), ("handles", 1), ("threads", 1), ("journal", MIB)):
        highest = [max((sample[name] / unit for sample in part), default=0) for part in within]
        owner = "journals" if name == "journal" else f"couriers, {name}"
        result.append(
            {
                "": f"{owner}, highest until",
                **dict(zip((MOMENTS[0], MOMENTS[1], MOMENTS[3]), map(round, highest), strict=True)),
            }
        )
    return table_of("Memory in MiB, handles, threads", result)


MOMENTS = ("after a tenth", "after the long training", "after the first short one", "after the last short one")


def completeness(uri: str, steps: int, recordings: int, steps_of_a_recording: int) -> list[dict[str, str | int]]:
    """Return what of each run is in its full record."""
    client = mlflow.MlflowClient(tracking_uri=uri)
    result = []
    for run in sorted(client.search_runs(["0"], max_results=1000), key=lambda run: run.info.start_time):
        wanted = steps if run.info.run_name == "long" else steps_of_a_recording
        numbers = mlflow_stability.load_run(run.info.run_id, tracking_uri=uri)["step"]
        missing = sorted(set(range(1, wanted + 1)) - set(numbers))
        result.append(
            {
                "run": run.info.run_name,
                "status": run.info.status,
                "steps": wanted,
                "recorded": int(numbers.nunique()),
                "twice": int(len(numbers) - numbers.nunique()),
                "missing": f"{missing[0]:,} to {missing[-1]:,}" if missing else "",
            }
        )
    long, short = result[0], result[1:]
    complete = sum(row["recorded"] == row["steps"] and not row["twice"] for row in short)
    return [long, {"run": f"{complete} of {recordings} short ones complete"}]


def draw(rows: list[dict[str, float | str]], watched: Soak, file: Path) -> None:
    """Draw memory, handles, cost of a step and journal over the hours of the soak."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    memory, handles, cost, journal = figure.subplots(2, 2, sharex=True).flat
    began = watched.samples[0]["time"]
    inside = [(float(row["time"]) - began) / 60 for row in rows]
    outside = [(sample["time"] - began) / 60 for sample in watched.samples]
    for axis, title, name, unit in ((memory, "Memory, MiB", "rss", MIB), (handles, "Open files", "handles", 1)):
        axis.plot(inside, [float(row[name]) / unit for row in rows], label="training")
        axis.plot(outside, [sample[name] / unit for sample in watched.samples], label="couriers", alpha=0.7)
        axis.set_title(title, loc="left")
        axis.set_ylim(bottom=0)
        axis.legend()
    cost.plot(inside, [1e3 * float(row["cpu"]) for row in rows])
    cost.set_title("CPU time of a step, ms", loc="left")
    cost.set_ylim(bottom=0)
    journal.plot(outside, [sample["journal"] / MIB for sample in watched.samples])
    journal.set_title("Journals, MiB", loc="left")
    for axis in (cost, journal):
        axis.set_xlabel("minutes")
    for (when, what), side in zip(watched.happened, ("right", "right", "right", "left"), strict=False):
        for axis in figure.axes:
            axis.axvline((when - began) / 60, color="grey", linewidth=0.6)
        cost.annotate(what, ((when - began) / 60, 0), rotation=90, fontsize=7, va="bottom", ha=side)
    figure.savefig(file, dpi=110)
