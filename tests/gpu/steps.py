"""What a step costs: whether it waits for the device, how long it takes, and what comes of it."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from contextlib import nullcontext

import torch
from gpu.check import Bench, Check, NotHereError, Outcome
from gpu.trainings import VARIANTS, Training, Variant, sequences_for
from scenarios.flying import flying
from torch.profiler import ProfilerActivity, profile

from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.settings import Settings

WARM_UP = 12
"""Steps before anything is timed: models are found at the first and the tenth."""
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")
ALLOWED = {10.0: 1.10, 50.0: 1.03, 250.0: 1.02}
"""How many times the bare step a watched one may take, by its length in milliseconds."""


def no_step_waits(bench: Bench) -> Outcome:
    """PyTorch raises at any wait that it knows of, while steps of everything that is measured by default go by."""
    training = Training(bench, VARIANTS[2])
    with flying(bench.folder):
        for _ in range(WARM_UP):
            training.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(120):
                training.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return Outcome("120 steps under set_sync_debug_mode('error')")


def no_wait_is_profiled(bench: Bench) -> Outcome:
    """The profiler counts as many waits of watched steps as of bare ones."""
    counts = []
    for watched in (False, True):
        training = Training(bench, VARIANTS[2])
        with flying(bench.folder) if watched else nullcontext():
            for _ in range(WARM_UP):
                training.step()
            bench.wait()
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                for _ in range(20):
                    training.step()
            counts.append(Counter(event.name for event in seen.events() if event.name in WAITS))
    more = counts[1] - counts[0]
    return Outcome(f"20 steps: {counts[0].total()} waits bare, {counts[1].total()} watched", not more)


def overhead_of(variant: Variant, milliseconds: float) -> Check:
    """The row of one way to train, at one length of its step."""

    def run(bench: Bench) -> Outcome:
        if variant.needs_cuda and not bench.is_cuda:
            raise NotHereError(f"{variant.name} needs CUDA")
        sequences = 1 if bench.quick else sequences_for(bench, milliseconds, _seconds_a_step)
        ratio, step, low, high = _ratio(bench, variant, sequences)
        figure = f"{step * 1e3:.1f} ms bare; x {ratio:.3f} watched ({low:.3f} to {high:.3f})"
        return Outcome(figure, bench.quick or ratio <= ALLOWED[milliseconds])

    return Check(f"overhead, {variant.name}, {milliseconds:.0f} ms", run, variant.needs_cuda)


def _seconds_a_step(training: Training) -> float:
    for _ in range(2):
        training.step()
    training.bench.wait()
    began = time.perf_counter()
    for _ in range(3):
        training.step()
    training.bench.wait()
    return (time.perf_counter() - began) / 3


def _ratio(bench: Bench, variant: Variant, sequences: int) -> tuple[float, float, float, float]:
    """Watched to bare, in turns; the bare step; the quartiles."""
    rounds, steps = (3, 4) if bench.quick else (30, 10)
    settings = Settings(strict=True, exclusive=True, offline=True, journal_dir=str(bench.folder / "overhead"))
    session = Session(settings)
    session.install()
    session.pause()
    trainings = {False: Training(bench, variant, sequences), True: Training(bench, variant, sequences)}

    def timed(watched: bool, count: int) -> float:
        if watched:
            session.resume()
        try:
            bench.wait()
            began = time.perf_counter()
            for _ in range(count):
                trainings[watched].step()
            bench.wait()
            return (time.perf_counter() - began) / count
        finally:
            if watched:
                session.pause()

    try:
        for watched in trainings:
            timed(watched, WARM_UP)
        taken: list[tuple[float, float]] = []
        for _ in range(rounds):
            order = random.sample([False, True], 2)
            took = {watched: timed(watched, steps) for watched in order}
            taken.append((took[False], took[True]))
    finally:
        session.stop()
    ratios = [watched / bare for bare, watched in taken]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, statistics.median(bare for bare, _ in taken), low, high


def readings_come_late_and_complete(bench: Bench) -> Outcome:
    """The device is far behind the host; every step is recorded, in order, with the loss that it had."""
    losses = []
    with flying(bench.folder) as flown:
        training = Training(bench, VARIANTS[0], 1)
        for _ in range(40):
            if bench.is_cuda:
                torch.cuda._sleep(20_000_000)  # about ten milliseconds in which nothing arrives
            losses.append(training.step())
    recorded = {
        record.step: next(
            value for signal, value in zip(record.signals, record.values, strict=True) if str(signal) == "loss"
        )
        for record in flown.records
        if isinstance(record, StepReading) and any(str(signal) == "loss" for signal in record.signals)
    }
    true = [float(loss) for loss in losses]
    return Outcome(f"{len(recorded)} of 40 steps", [recorded[step] for step in sorted(recorded)] == true)


CHECKS = (
    Check("no step waits for the device", no_step_waits, needs_cuda=True),
    Check("the profiler sees no wait of ours", no_wait_is_profiled, needs_cuda=True),
    *(overhead_of(variant, milliseconds) for milliseconds in ALLOWED for variant in VARIANTS),
    Check("late readings are complete", readings_come_late_and_complete),
)
