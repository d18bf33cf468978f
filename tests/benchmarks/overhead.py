"""Cost of watching a small GPT, in units of the bare training."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import mlflow
import psutil
import torch
from benchmarks.peers.in_training import TOOLS, installed, named
from benchmarks.table import Table, table_of
from zoo.tiny_gpt import TinyGPT, batch_of

from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.settings import Settings

AUTOPILOT: dict[str, Any] = {"rollback": True, "adaptive_clip": True, "stop_on": ("nonfinite", "loss>1000")}
WATCHED: dict[str, dict[str, Any]] = {
    "watched": {},
    "layers / 10": {"layers_every_n_steps": 10, "layer_metrics": True},
    "guard": {"guard": True},
    "rollback": AUTOPILOT,
    "everything": {**AUTOPILOT, "layer_metrics": True, "attention_every_n_steps": 100, "representations": ("norm",)},
}
"""Arguments of `autolog()` of each variant."""
NAMES = {
    "bare again": "bare, against itself: the noise",
    "watched": "`autolog()`",
    "layers / 10": "`autolog(layers_every_n_steps=10, layer_metrics=True)`",
    "guard": "`autolog(guard=True)`",
    "rollback": "`autolog(rollback=True)`, adaptive clipping, stop conditions",
    "everything": "all of that, layer metrics, attention and representations every 100 steps",
    "floor": "one norm over all gradients, nothing kept",
    "naive": "norm, mean, std, max of each gradient with `.item()`, and `mlflow.log_metrics` every step",
}
"""What a variant is called in the table."""


class Training:
    """One model in training; `after` runs after each backward pass, `ended` after each step, which is `within`."""

    def __init__(self, device: str, after: Callable[[torch.nn.Module, torch.Tensor], None] | None = None) -> None:
        torch.manual_seed(0)
        self.model = TinyGPT().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.batch = tuple(tensor.to(device) for tensor in batch_of())
        self.after = after
        self.ended: Callable[[torch.Tensor], None] | None = None
        self.within: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    def step(self) -> None:
        with self.within():
            loss = self.model(*self.batch)
            loss.backward()
        if self.after is not None:
            self.after(self.model, loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ended is not None:
            self.ended(loss)


def floor(model: torch.nn.Module, loss: torch.Tensor) -> None:
    """Compute one norm over all gradients and keep nothing."""
    norms = torch._foreach_norm([parameter.grad for parameter in model.parameters()])
    torch.linalg.vector_norm(torch.stack(norms))


def naive(model: torch.nn.Module, loss: torch.Tensor) -> None:
    """Log four numbers of each parameter's gradient with `.item()`, as scripts do."""
    numbers = {"loss": loss.item()}
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        numbers[f"{name}.norm"] = grad.norm().item()
        numbers[f"{name}.mean"] = grad.mean().item()
        numbers[f"{name}.std"] = grad.std().item()
        numbers[f"{name}.max"] = grad.abs().max().item()
    mlflow.log_metrics(numbers)


def overhead(
    rounds: int = 60,
    steps: int = 3,
    threads: int = 1,
    device: str = "cpu",
    only: tuple[str, ...] = tuple(WATCHED),
    peers: tuple[str, ...] = tuple(TOOLS),
    couriers_start: float = 15.0,
) -> Iterator[Table]:
    """Take a few steps of every variant in each round, in changing order, and compare with the bare ones.

    `only` are ours, `peers` are other tools, each set up as its own documentation does it.

    `median` is that of the ratios of the rounds; `sum` the ratio of the sums, which has in it what is done every
    hundred steps. CPU time is that of this process: couriers are other processes, waited for `couriers_start` seconds.
    """
    torch.set_num_threads(threads)
    trainings = {"bare": Training(device), "bare again": Training(device)}
    sessions = {name: session_of(name) for name in only}
    trainings |= {name: Training(device) for name in sessions}
    trainings |= {"floor": Training(device, floor), "naive": Training(device, naive)}
    missing = [name for name in peers if not installed(name)]
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)

    def measured(name: str) -> tuple[float, float]:
        with watching(sessions.get(name)):
            wait()
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(steps):
                trainings[name].step()
            wait()
            return time.process_time() - cpu, time.perf_counter() - wall

    mlflow.set_tracking_uri(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    mlflow.start_run()
    closings = []
    for name in peers:
        if name not in missing:
            trainings[name] = Training(device)
            closings.append(TOOLS[name].set_up(trainings[name]))
    for name in trainings:
        measured(name)
    couriers = courier_processes()
    time.sleep(couriers_start)  # couriers import MLflow and make their database
    couriers_before = sum(map(cpu_of, couriers))
    began = time.perf_counter()
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in trainings}
    for _ in range(rounds):
        for name in random.sample(list(trainings), len(trainings)):
            took[name].append(measured(name))
    elapsed = time.perf_counter() - began
    busy = (sum(map(cpu_of, couriers)) - couriers_before) / elapsed
    for close in closings:
        close()
    mlflow.end_run()

    parameters = sum(parameter.numel() for parameter in trainings["bare"].model.parameters())
    bare_ms = 1e3 * statistics.median(wall for _, wall in took["bare"]) / steps
    off = {name: session.parts_off for name, session in sessions.items() if session.parts_off}
    names = NAMES | {name: named(name) for name in TOOLS}
    rows = [ratios(names[name], pairs, took["bare"]) for name, pairs in took.items() if name != "bare"]
    yield table_of(
        "Ratio to bare training",
        [*rows, *({"variant": names[name]} for name in missing)],
        [
            f"{parameters / 1e6:.1f} M parameters on {device}, {threads} thread(s); a bare step takes {bare_ms:.1f} ms",
            f"{len(couriers)} couriers: {busy:.2%} of one core while training ran ({elapsed:.0f} s)",
            *([f"parts switched off: {off}"] if off else []),
        ],
    )


def session_of(name: str) -> Session:
    """Return a paused session with the settings of a variant."""
    session = Session(Settings(strict=True, exclusive=True, **WATCHED[name]))
    session.install()
    session.pause()
    return session


@contextlib.contextmanager
def watching(session: Session | None) -> Iterator[None]:
    """Resume this session alone; None: no session is on."""
    if session is not None:
        session.resume()
    try:
        yield
    finally:
        if session is not None:
            session.pause()


def ratios(name: str, pairs: list[tuple[float, float]], bare: list[tuple[float, float]]) -> dict[str, str | float]:
    row: dict[str, str | float] = {"variant": name}
    for at, clock in enumerate(("CPU", "wall")):
        by_round = [own[at] / plain[at] for own, plain in zip(pairs, bare, strict=True)]
        low, middle, high = statistics.quantiles(by_round, n=4)
        row[f"{clock} median"] = round(middle, 3)
        row[f"{clock} quartiles"] = f"{low:.3f}..{high:.3f}"
        row[f"{clock} sum"] = round(sum(own[at] for own in pairs) / sum(plain[at] for plain in bare), 3)
    return row


def courier_processes() -> list[psutil.Process]:
    """Return the couriers of this process, one for each session."""
    pairs = ((process, process.info["cmdline"] or [""]) for process in psutil.process_iter(["cmdline"]))
    return [
        process for process, words in pairs if "mlflow_stability.courier" in words and f"-{os.getpid()}-" in words[-1]
    ]


def cpu_of(process: psutil.Process) -> float:
    if not process.is_running():
        return float("nan")
    times = process.cpu_times()
    return times.user + times.system
