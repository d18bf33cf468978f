"""What watching costs: the same training bare and watched, in turns, step by step, in one process.

    python tests/benchmarks/overhead.py [--rounds 60] [--threads 1] [--device cpu] [--only watched rollback]

Each round takes a few steps of every variant, one variant after the other in changing order, and compares each with
the bare steps of the same round; the medians of these ratios are printed, and beside them the ratio of the sums, for
what is done every hundred steps is in no median. CPU time is that of the training process; the couriers are other
processes, and their share stands beside. Variants: bare (against itself: the noise), those of `WATCHED`, each with a
session of its own that is paused while the others train, floor (one norm over all gradients, nothing kept), naive (per
parameter norm, mean, std and max with `.item()`, and `mlflow.log_metrics` every step).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from small_step import busy_ratios, own_calls, own_seconds
from tiny_gpt import TinyGPT, batch_of

from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.settings import Settings

After = Callable[[torch.nn.Module, torch.Tensor], None]
WATCHED: dict[str, dict[str, Any]] = {
    "watched": {},
    "layers / 10": {"layers_every_n_steps": 10, "layer_metrics": True},
    "guard": {"guard": True},
    "rollback": {"rollback": True, "adaptive_clip": True, "stop_on": ("nonfinite", "loss>1000")},
    "everything": {
        "rollback": True,
        "adaptive_clip": True,
        "stop_on": ("nonfinite", "loss>1000"),
        "layer_metrics": True,
        "attention_every_n_steps": 100,
        "representations": ("norm",),
    },
}
"""The arguments of `autolog()` of each variant; all of the autopilot is on in the one before the last, and in the last
one all that there is, with every look into forward passes each 100 steps."""


class Training:
    """One model in training; `step` takes a step."""

    def __init__(
        self, device: str, after: Callable[[torch.nn.Module, float], None] | None = None, **shape: int
    ) -> None:
        torch.manual_seed(0)
        self.model = TinyGPT(**shape).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.batch = tuple(each.to(device) for each in batch_of())
        self.after = after

    def step(self) -> None:
        loss = self.model(*self.batch)
        loss.backward()
        if self.after is not None:
            self.after(self.model, loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def floor(model: torch.nn.Module, loss: torch.Tensor) -> None:
    norms = torch._foreach_norm([each.grad for each in model.parameters()])
    torch.linalg.vector_norm(torch.stack(norms))


def naive(model: torch.nn.Module, loss: torch.Tensor) -> None:
    import mlflow

    numbers = {"loss": loss.item()}
    for name, each in model.named_parameters():
        grad = each.grad
        numbers[f"{name}.norm"] = grad.norm().item()
        numbers[f"{name}.mean"] = grad.mean().item()
        numbers[f"{name}.std"] = grad.std().item()
        numbers[f"{name}.max"] = grad.abs().max().item()
    mlflow.log_metrics(numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=3, help="steps of each variant in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without-naive", action="store_true")
    parser.add_argument("--only", nargs="*", choices=list(WATCHED), default=list(WATCHED), help="watched variants")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.chdir(tempfile.mkdtemp(prefix="overhead-"))

    trainings = {"bare": Training(options.device), "bare again": Training(options.device)}
    sessions = {name: session_of(name) for name in options.only}
    trainings |= {name: Training(options.device) for name in sessions}
    trainings["floor"] = Training(options.device, floor)
    if not options.without_naive:
        trainings["naive"] = Training(options.device, naive)
    parameters = sum(each.numel() for each in trainings["bare"].model.parameters())
    wait = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)

    def measured(name: str) -> tuple[float, float]:
        with watching(sessions.get(name)):
            wait()
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(options.steps):
                trainings[name].step()
            wait()
            return time.process_time() - cpu, time.perf_counter() - wall

    if "naive" in trainings:
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
        mlflow.start_run()
    for name in trainings:
        measured(name)
    couriers = courier_processes()
    time.sleep(15)  # the couriers have imported MLflow and made their database by then
    couriers_before = sum(map(cpu_of, couriers))
    began = time.perf_counter()
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in trainings}
    for _ in range(options.rounds):
        order = list(trainings)
        random.shuffle(order)
        for name in order:
            took[name].append(measured(name))
    elapsed = time.perf_counter() - began
    couriers_spent = sum(map(cpu_of, couriers)) - couriers_before

    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(
        f"{parameters / 1e6:.1f} M parameters on {options.device}, {options.threads} thread(s), {options.rounds} rounds"
    )
    step = statistics.median(wall for _, wall in took["bare"]) / options.steps
    print(f"bare step: {step * 1000:.1f} ms\n")
    print(table(took))
    print(
        f"\n{len(couriers)} couriers: {couriers_spent / elapsed:.2%} of one core while training ran ({elapsed:.0f} s)"
    )
    for name, session in sessions.items():
        off = session.parts_off or "none"
        print(f"{name}: {session.step} steps recorded, good states {session.good_steps}; parts switched off: {off}")
        calls = statistics.median(sum(each.values()) for each in own_calls(session))
        cost, ratio = (
            statistics.median(own for _, own in own_seconds(session, 40)),
            statistics.median(busy_ratios(session, 10)),
        )
        print(f"{name}: {cost * 1e6:.0f} us and {calls:.0f} calls of our own a step with ten parameters")
        print(f"{name}: a step of 10 ms takes {ratio:.3f} of its CPU time")


def session_of(name: str) -> Session:
    """A session with the settings of a variant, paused."""
    session = Session(Settings(strict=True, exclusive=True, **WATCHED[name]))
    session.install()
    session.pause()
    return session


@contextlib.contextmanager
def watching(session: Session | None) -> Iterator[None]:
    """Only this session watches inside; None: nobody does."""
    if session is not None:
        session.resume()
    try:
        yield
    finally:
        if session is not None:
            session.pause()


def table(took: dict[str, list[tuple[float, float]]]) -> str:
    """Each variant in units of bare training: medians over the rounds, and the whole."""
    lines = [
        f"{'variant':<12}{'CPU ratio':>11}{'quartiles':>16}{'whole':>8}{'wall ratio':>12}{'quartiles':>16}{'whole':>8}"
    ]
    for name, rounds in took.items():
        if name == "bare":
            continue
        cells = []
        for kind in range(2):
            ratios = [each[kind] / bare[kind] for each, bare in zip(rounds, took["bare"], strict=True)]
            whole = sum(each[kind] for each in rounds) / sum(bare[kind] for bare in took["bare"])
            cells.append(f"{spread(ratios)}{whole:>8.3f}")
        lines.append(f"{name:<12}{cells[0]} {cells[1]}")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):>11.3f}   {low:.3f}..{high:.3f}"


def courier_processes() -> list[psutil.Process]:
    """One for each session."""
    said = ((each, each.info["cmdline"] or [""]) for each in psutil.process_iter(["cmdline"]))
    return [each for each, words in said if "mlflow_stability.courier" in words and f"-{os.getpid()}-" in words[-1]]


def cpu_of(process: psutil.Process) -> float:
    if not process.is_running():
        return float("nan")
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
