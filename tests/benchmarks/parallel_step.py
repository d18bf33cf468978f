"""Cost of a watched step where several gloo ranks train together."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from benchmarks.table import Table, table_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability

WAYS = ("ddp", "fsdp2", "fsdp2_clip", "fsdp2_rollback")
STEPS, WARM_UP_STEPS = 20, 20
Pair = tuple[tuple[float, float], tuple[float, float]]
"""Milliseconds of a bare and a watched step: wall-clock time, and CPU time of the training thread."""


def parallel_step(ranks: int = 4, blocks: int = 12, only: tuple[str, ...] = WAYS) -> Iterator[Table]:
    """Train bare and watched in turns, in blocks of twenty steps, all ranks at the same time; rank 0 is measured.

    On fewer cores than ranks, wall-clock times are those of a crowded machine.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train_rank, (ranks, blocks, only, port, str(Path.cwd()), results), ranks)  # type: ignore[no-untyped-call]
    rows = []
    for way in only:
        pairs = results.get()
        for at, clock in enumerate(("wall", "CPU of the thread")):
            low, middle, high = statistics.quantiles((watched[at] - bare[at] for bare, watched in pairs), n=4)
            bare_ms, watched_ms = (statistics.median(pair[side][at] for pair in pairs) for side in (0, 1))
            rows.append(
                {
                    "way": way,
                    "clock": clock,
                    "bare, ms": bare_ms,
                    "watched, ms": watched_ms,
                    "difference, ms": middle,
                    "quartiles": f"{low:+.2f}..{high:+.2f}",
                }
            )
    yield table_of(f"{ranks} ranks", rows)


def train_rank(rank: int, ranks: int, blocks: int, only: tuple[str, ...], port: str, folder: str, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for way in only:
        pairs = measure(way, ranks, blocks, Path(folder) / way)
        if rank == 0:
            results.put(pairs)
    dist.barrier()
    dist.destroy_process_group()


def measure(way: str, ranks: int, blocks: int, folder: Path) -> list[Pair]:
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.Tanh())), nn.Linear(128, 1))
    model: nn.Module = DistributedDataParallel(plain) if way == "ddp" else plain
    if way != "ddp":
        fully_shard(plain, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 128)

    def block(steps: int) -> tuple[float, float]:
        dist.barrier()
        began, thread = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            if way == "fsdp2_clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return (time.perf_counter() - began) / steps * 1e3, (time.thread_time() - thread) / steps * 1e3

    pairs = []
    block(WARM_UP_STEPS)
    for _ in range(blocks):
        bare = block(STEPS)
        options = mlflow_stability.Options(journal_dir=folder)
        mlflow_stability.autolog(offline=True, silent=True, rollback=way == "fsdp2_rollback", options=options)
        block(WARM_UP_STEPS)
        watched = block(STEPS)
        mlflow_stability.autolog(disable=True)
        pairs.append((bare, watched))
    return pairs
