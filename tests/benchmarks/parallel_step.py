"""What a watched step costs where several gloo ranks train together.

    python tests/benchmarks/parallel_step.py [--ranks 4] [--blocks 12] [--only fsdp2 fsdp2_clip ddp]

Each rank trains bare and watched in turns, A B A B, in blocks of twenty steps each, all ranks at the same time. Printed
are the median step of both, and the median of the differences between neighbouring blocks with its quartiles, as rank 0
sees them: its wall-clock time, and the CPU time of its training thread. On fewer cores than ranks, wall-clock times are
those of a crowded machine.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import mlflow_stability

WAYS = ("ddp", "fsdp2", "fsdp2_clip", "fsdp2_rollback")
STEPS, WARM = 20, 20


def rank_of_many(rank: int, arguments: argparse.Namespace, port: str, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=arguments.ranks)
    for way in arguments.only:
        measure(way, rank, arguments, Path(folder) / way)
    dist.barrier()
    dist.destroy_process_group()


def measure(way: str, rank: int, arguments: argparse.Namespace, folder: Path) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.Tanh())), nn.Linear(128, 1))
    model: nn.Module = DistributedDataParallel(plain) if way == "ddp" else plain
    if way != "ddp":
        mesh = init_device_mesh("cpu", (arguments.ranks,))
        fully_shard(plain, mesh=mesh)
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
    block(WARM)
    for _ in range(arguments.blocks):
        bare = block(STEPS)
        options = mlflow_stability.Options(journal_dir=folder)
        mlflow_stability.autolog(offline=True, silent=True, rollback=way == "fsdp2_rollback", options=options)
        block(WARM)
        watched = block(STEPS)
        mlflow_stability.autolog(disable=True)
        pairs.append((bare, watched))
    if rank == 0:
        for at, what in enumerate(("wall", "CPU of the thread")):
            differences = sorted(watched[at] - bare[at] for bare, watched in pairs)
            low, middle, high = statistics.quantiles(differences, n=4)
            bare_ms, watched_ms = (statistics.median(each[side][at] for each in pairs) for side in (0, 1))
            print(
                f"{way:14} {what:18} bare {bare_ms:7.2f} ms, watched {watched_ms:7.2f} ms, "
                f"difference {middle:+.2f} ms [{low:+.2f}, {high:+.2f}]",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--only", nargs="+", default=WAYS, choices=WAYS)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        free = str(listening.getsockname()[1])
    with tempfile.TemporaryDirectory() as temporary:
        given = parser.parse_args()
        mp.spawn(rank_of_many, (given, free, temporary), given.ranks)  # type: ignore[no-untyped-call]
