"""How long training waits for a checkpoint: ours, and `torch.save` in the loop.

    python tests/benchmarks/checkpoints.py [--rounds 15] [--threads 1] [--layers 6] [--width 256] [--folder .]

A small GPT with AdamW takes a few steps, then a checkpoint is made in each of the ways in turn, then it takes steps
again while a write may still be on its way. Printed: the time for which the loop stood still (median and worst), how
much longer than usual the steps right after it took in all (beside it how much they vary by themselves), the CPU time
that the process spent on it in all threads, and how much of 500 steps the standing still is.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tiny_gpt import TinyGPT, batch_of

from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.checkpoint_writer import CheckpointWriter
from mlflow_stability.recovery.state.restore import restore_state
from mlflow_stability.recovery.state.snapshot_ring import SnapshotRing
from mlflow_stability.recovery.state.state_copy import StateCopy, copy_state
from mlflow_stability.recovery.state.training_parts import find_parts
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

AROUND = 4
"""Steps between two checkpoints, and as many that are timed after each."""


class Training:
    def __init__(self, layers: int, width: int, device: str) -> None:
        torch.manual_seed(0)
        self.model = TinyGPT(layers=layers, width=width).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.batch = tuple(each.to(device) for each in batch_of())
        self.count = 0

    def step(self) -> float:
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(*self.batch).backward()
        self.optimizer.step()
        self.count += 1
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began


def in_the_loop(training: Training, folder: Path, synced: bool) -> Callable[[], None]:
    def save() -> None:
        with (folder / "state.pt").open("wb") as file:
            content = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
            torch.save(content, file)
            if synced:
                file.flush()
                os.fsync(file.fileno())

    return save


def ours(training: Training, folder: Path) -> tuple[Callable[[], None], CheckpointWriter, list[StateCopy]]:
    parts = find_parts([training.optimizer])
    ring = SnapshotRing(RollbackPolicy())
    writer = CheckpointWriter(CheckpointStore(folder / "ours", "benchmark", 3), ring.is_finite)
    last: list[StateCopy] = []

    def save() -> None:
        copy = copy_state(parts, training.count)
        if not writer.submit(copy, 1.0):
            raise RuntimeError("the checkpoint before is still being written: take more steps between them")
        last[:] = [copy]

    return save, writer, last


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", default=".", help="where the checkpoints go: the disk that is measured")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    training = Training(asked.layers, asked.width, asked.device)
    for _ in range(3):
        training.step()
    with tempfile.TemporaryDirectory(dir=asked.folder) as place:
        folder = Path(place)
        save, writer, last = ours(training, folder)
        ways: dict[str, Callable[[], None]] = {
            "nothing": lambda: None,
            "torch.save": in_the_loop(training, folder, synced=False),
            "torch.save + fsync": in_the_loop(training, folder, synced=True),
            "ours": save,
        }
        stood: dict[str, list[float]] = {name: [] for name in ways}
        after: dict[str, list[float]] = {name: [] for name in ways}
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(asked.rounds):
            names = list(ways)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                for _ in range(AROUND):
                    training.step()
                began, cpu = time.perf_counter(), time.process_time()
                ways[name]()
                stood[name].append(time.perf_counter() - began)
                after[name].append(sum(training.step() for _ in range(AROUND)))
                writer.drain(60)
                spent[name].append(time.process_time() - cpu)
        began = time.perf_counter()
        restore_state(last[0], find_parts([training.optimizer]))
        restored = time.perf_counter() - began
        writer.close(60)

    usual, of_steps = statistics.median(after["nothing"]), statistics.median(spent["nothing"])
    low, _, high = statistics.quantiles(after["nothing"], n=4)
    millions = sum(each.numel() for each in training.model.parameters()) / 1e6
    print(
        f"{millions:.1f} M parameters with AdamW, {last[0].nbytes / 1e6:.0f} MB; torch {torch.__version__}, "
        f"{platform.machine()}, {asked.threads} thread(s) of {os.cpu_count()}, load {os.getloadavg()[0]:.1f}; "
        f"a step takes {1e3 * usual / AROUND:.0f} ms; {asked.rounds} rounds"
    )
    print(f"{'':20}{'stands still':>13}{'worst':>10}{f'next {AROUND} steps':>15}{'CPU':>9}{'of 500 steps':>14}")
    for name in ways:
        still = statistics.median(stood[name])
        slower = statistics.median(after[name]) - usual
        cpu = statistics.median(spent[name]) - of_steps
        print(
            f"{name:20}{1e3 * still:>10.1f} ms{1e3 * max(stood[name]):>7.0f} ms{1e3 * slower:>+12.0f} ms"
            f"{1e3 * cpu:>6.0f} ms{100 * still / (125 * usual):>12.3f} %"
        )
    print(f"the steps by themselves vary by {1e3 * (high - low):.0f} ms (middle half of the rounds)")
    print(f"setting the training back to such a state, finding its parts included: {1e3 * restored:.0f} ms")


if __name__ == "__main__":
    main()
