"""What watching costs: the same training bare and watched, in turns, step by step, in one process.

    python tests/benchmarks/overhead.py [--rounds 60] [--threads 1] [--device cpu]

Each round takes a few steps of every variant, one variant after the other in changing order, and compares each with
the bare steps of the same round; the medians of these ratios are printed. CPU time is that of the training process;
the courier is another process, and its share stands beside. Variants: bare (against itself: the noise), watched
(`autolog()` with its defaults), floor (one norm over all gradients, nothing kept), naive (per parameter norm, mean,
std and max with `.item()`, and `mlflow.log_metrics` every step).
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from tiny_gpt import TinyGPT, batch_of

import mlflow_stability

After = Callable[[torch.nn.Module, torch.Tensor], None]


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
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.chdir(tempfile.mkdtemp(prefix="overhead-"))

    trainings = {"bare": Training(options.device), "bare again": Training(options.device)}
    trainings["watched"] = Training(options.device)
    trainings["floor"] = Training(options.device, floor)
    if not options.without_naive:
        trainings["naive"] = Training(options.device, naive)
    parameters = sum(each.numel() for each in trainings["bare"].model.parameters())
    wait = torch.cuda.synchronize if options.device == "cuda" else (lambda: None)

    def measured(name: str) -> tuple[float, float]:
        if name == "watched":
            mlflow_stability.current_session().resume()
        try:
            wait()
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(options.steps):
                trainings[name].step()
            wait()
            return time.process_time() - cpu, time.perf_counter() - wall
        finally:
            if name == "watched":
                mlflow_stability.current_session().pause()

    mlflow_stability.autolog(strict=True, exclusive=True)
    mlflow_stability.current_session().pause()
    if "naive" in trainings:
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{Path.cwd() / 'mlflow.db'}")
        mlflow.start_run()
    for name in trainings:
        measured(name)
    courier = courier_process()
    time.sleep(15)  # the courier has imported MLflow and made its database by then
    courier_before = cpu_of(courier)
    began = time.perf_counter()
    watched_seconds = 0.0
    ratios: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in trainings}
    bare_times = []
    for _ in range(options.rounds):
        order = list(trainings)
        random.shuffle(order)
        took = {name: measured(name) for name in order}
        watched_seconds += took["watched"][0]
        bare_times.append(took["bare"][1] / options.steps)
        for name, (cpu, wall) in took.items():
            ratios[name][0].append(cpu / took["bare"][0])
            ratios[name][1].append(wall / took["bare"][1])
    elapsed = time.perf_counter() - began
    courier_spent = cpu_of(courier) - courier_before

    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(
        f"{parameters / 1e6:.1f} M parameters on {options.device}, {options.threads} thread(s), {options.rounds} rounds"
    )
    print(f"bare step: {statistics.median(bare_times) * 1000:.1f} ms\n")
    print(f"{'variant':<12}{'CPU ratio':>11}{'quartiles':>16}{'wall ratio':>12}{'quartiles':>16}")
    for name, (cpu, wall) in ratios.items():
        if name != "bare":
            print(f"{name:<12}{spread(cpu)}  {spread(wall)}")
    print(f"\ncourier: {courier_spent / elapsed:.2%} of one core while training ran ({elapsed:.0f} s)")
    session = mlflow_stability.current_session()
    print(f"steps recorded: {session.step}; parts switched off: {session.parts_off or 'none'}")
    small_model(options.threads)


def small_model(threads: int) -> None:
    """Our Python on a model of ten parameters: what it costs where a step costs nothing."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(4, 8)
    session = mlflow_stability.current_session()

    def steps(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            model(data).pow(2).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return (time.process_time() - began) / count

    session.resume()
    steps(50)
    differences = []
    for _ in range(40):
        session.pause()
        bare = steps(50)
        session.resume()
        differences.append(steps(50) - bare)
    session.pause()
    print(f"ten parameters: {statistics.median(differences) * 1e6:.0f} us of our own a step")


def spread(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):>11.3f}   {low:.3f}..{high:.3f}"


def courier_process() -> psutil.Process | None:
    for child in psutil.Process().children():
        if any("mlflow_stability.courier" in part for part in child.cmdline()):
            return child
    return None


def cpu_of(process: psutil.Process | None) -> float:
    if process is None or not process.is_running():
        return float("nan")
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
